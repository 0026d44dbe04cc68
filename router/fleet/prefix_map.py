"""Which worker has probably cached which prefix, learnt from the router's own decisions.

A bounded map from block hash to the epochs of the workers that were sent that block; the least
recently used go first, and no more are kept than all pools together hold. It is a guess: a worker
may have evicted the block, and then only time is lost. It keeps epochs, not worker ids: a restarted
worker isn't credited with what it forgot.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

MAX_EPOCHS_PER_BLOCK = 8
"""A prefix that everybody holds needs no longer list: affinity then no longer tells them apart."""


class PrefixMap:
    """Block hash -> epochs that were sent it; at most `max_blocks` entries."""

    def __init__(self, max_blocks: int) -> None:
        assert max_blocks > 0
        self._max_blocks = max_blocks
        self._num_kept = max_blocks
        self._holders: OrderedDict[bytes, tuple[str, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def record(self, hashes: Sequence[bytes], epoch: str) -> None:
        """Notes that the worker is about to hold these blocks.

        The chain is touched tail first, so that a prefix outlives what follows it.
        """
        after: dict[tuple[str, ...], tuple[str, ...]] = {}  # one tuple for all blocks of a chain
        for block_hash in reversed(hashes):
            known = self._holders.pop(block_hash, ())
            if known not in after:
                others = (e for e in known if e != epoch)
                after[known] = (epoch, *others)[:MAX_EPOCHS_PER_BLOCK]
            self._holders[block_hash] = after[known]
        self._drop_oldest()

    def fit(self, num_blocks: int) -> None:
        """Keeps no more than this, which is what all pools hold: the rest can't be there."""
        self._num_kept = min(self._max_blocks, num_blocks)
        self._drop_oldest()

    def matches(self, hashes: Sequence[bytes]) -> dict[str, int]:
        """Epoch -> how many blocks it holds of the chain, counted from its start without a gap."""
        counts: dict[str, int] = {}
        for depth, block_hash in enumerate(hashes):
            holders = self._holders.get(block_hash, ())
            unbroken = [epoch for epoch in holders if counts.get(epoch, 0) == depth]
            if not unbroken:
                break
            counts.update(dict.fromkeys(unbroken, depth + 1))
        return counts

    def _drop_oldest(self) -> None:
        while len(self._holders) > self._num_kept:
            self._holders.popitem(last=False)
