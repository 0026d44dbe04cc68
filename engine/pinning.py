"""What an attempt asked to be pinned, once its prompt is computed; both roles do it here."""

from __future__ import annotations

from core.request import Pinned
from engine.sequence import Sequence
from kv_cache.block_pool import BlockPool


def pin_prompt(pool: BlockPool, sequence: Sequence, now: float) -> Pinned | None:
    """Pins full blocks of the prefixes that the attempt names, each as a whole or not at all; None:
    it names none. All of the prompt must have KV."""
    wish = sequence.attempt.pins
    if wish is None:
        return None
    size, limit = pool.block_size, wish.max_owned_tokens
    max_owned = None if limit is None else limit // size
    num_tokens, block_seconds = 0, 0.0
    for prefix in sorted(wish.prefixes, key=lambda p: p.num_tokens):
        most = min(prefix.num_tokens, sequence.num_prompt_tokens)
        hashes = sequence.full_block_hashes(size, most)
        gained = pool.pin(
            hashes, owner=wish.owner, ttl_s=prefix.ttl_s, now=now, max_owned=max_owned
        )
        if gained is not None:
            num_tokens = len(hashes) * size
            block_seconds += gained
    return Pinned(sequence.transfer_id, num_tokens, block_seconds * size)


def earliest(*moments: float | None) -> float | None:
    """The first of those that are known."""
    return min((moment for moment in moments if moment is not None), default=None)
