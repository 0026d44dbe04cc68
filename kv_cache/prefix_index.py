"""Which block holds which content: a one-to-one map between block hashes and blocks."""

from __future__ import annotations

from collections.abc import Iterable


class PrefixIndex:
    """Finds blocks by the hash of their content; every operation costs the same at any size."""

    def __init__(self) -> None:
        self._block_of: dict[bytes, int] = {}
        self._hash_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._block_of)

    def __contains__(self, block: int) -> bool:
        return block in self._hash_of

    def hash_of(self, block: int) -> bytes | None:
        """The hash under which `block` can be found, None if it can't."""
        return self._hash_of.get(block)

    def insert(self, block: int, block_hash: bytes) -> bool:
        """Makes `block` the one found under `block_hash`; False if another block already is.

        A block's content is written once, so inserting it under a second hash is a mistake.
        """
        known = self._hash_of.get(block)
        assert known is None or known == block_hash, f"block {block} has another hash already"
        if self._block_of.setdefault(block_hash, block) != block:
            return False
        self._hash_of[block] = block_hash
        return True

    def remove(self, block: int) -> None:
        """Forgets `block`, which is about to be overwritten."""
        del self._block_of[self._hash_of.pop(block)]

    def match(self, hashes: Iterable[bytes]) -> list[int]:
        """Blocks of the longest prefix of `hashes` that is known, in order."""
        blocks: list[int] = []
        for block_hash in hashes:
            block = self._block_of.get(block_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def check_integrity(self) -> None:
        """Raises AssertionError unless the two directions agree."""
        assert len(self._block_of) == len(self._hash_of), "index: directions differ in size"
        for block, block_hash in self._hash_of.items():
            found = self._block_of.get(block_hash)
            assert found == block, f"index: block {block}'s hash leads to block {found}"
