"""Content hashes of full KV blocks: a chain, so that equal hashes mean equal whole prefixes.

A block's hash covers its parent's hash and its own token ids; the chain starts at a root that
covers everything else the KV depends on (model, adapter) and the request's `cache_salt`. The bytes
are the same in every process and on every machine, which Python's salted `hash()` is not.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

HASH_BYTES = 16
"""128 bits: among 2^32 blocks the chance of any collision is about 2^-65."""


def root_hash(compat_key: str, cache_salt: str = "", adapter: str = "") -> bytes:
    """The parent of every first block, [16] bytes; requests share blocks only under equal roots."""
    digest = hashlib.blake2b(digest_size=HASH_BYTES)
    for part in (compat_key, cache_salt, adapter):
        data = part.encode()
        # Lengths keep ("ab", "c") and ("a", "bc") apart.
        digest.update(struct.pack("<Q", len(data)))
        digest.update(data)
    return digest.digest()


def extend(parent: bytes, token_ids: Sequence[int]) -> bytes:
    """The hash of the full block holding `token_ids` that follows `parent`, [16] bytes."""
    return _chain(parent, _to_bytes(token_ids))


def block_hashes(
    root: bytes, token_ids: Sequence[int], block_size: int, known: Sequence[bytes] = ()
) -> list[bytes]:
    """Hashes of the full blocks of `token_ids` that follow the `known` ones, in order.

    `known` are the hashes of the first blocks of the same `token_ids`, so that a growing sequence
    does `hashes += block_hashes(root, token_ids, block_size, known=hashes)` without hashing twice.
    """
    start = len(known) * block_size
    num_new = len(token_ids) // block_size - len(known)
    data = _to_bytes(token_ids[start : start + max(num_new, 0) * block_size])
    parent = known[-1] if known else root
    hashes: list[bytes] = []
    stride = block_size * 4
    for offset in range(0, len(data), stride):
        parent = _chain(parent, data[offset : offset + stride])
        hashes.append(parent)
    return hashes


def _to_bytes(token_ids: Sequence[int]) -> bytes:
    """Little-endian 32-bit words, whatever the machine's own order is."""
    return struct.pack(f"<{len(token_ids)}I", *token_ids)


def _chain(parent: bytes, data: bytes) -> bytes:
    return hashlib.blake2b(parent + data, digest_size=HASH_BYTES).digest()
