"""What both schedulers do with a sequence's blocks: match, count, publish, release."""

from __future__ import annotations

from engine.sequence import NO_BLOCK, Sequence
from kv_cache.block_pool import BlockPool
from kv_cache.window import num_blocks_outside


def match_prefix(
    pool: BlockPool, sequence: Sequence, *, num_tokens: int | None = None
) -> list[int]:
    """Cached blocks that `sequence` starts with; holds nothing.

    By default the last token is left out: it must be computed for the next one to be sampled. Of a
    prompt whose tokens are scored, all must be.
    """
    if sequence.scores_prompt:
        return []
    limit = sequence.num_tokens - 1 if num_tokens is None else num_tokens
    return pool.match(sequence.full_block_hashes(pool.block_size, limit))


def num_missing_blocks(pool: BlockPool, sequence: Sequence, num_tokens: int) -> int:
    """Blocks the sequence lacks to hold the KV of its first `num_tokens` tokens."""
    return max(0, -(-num_tokens // pool.block_size) - len(sequence.block_table))


def publish_full_blocks(pool: BlockPool, sequence: Sequence, num_new_tokens: int) -> None:
    """Publishes the blocks that the last `num_new_tokens` computed tokens have filled."""
    size = pool.block_size
    first, end = (sequence.num_computed - num_new_tokens) // size, sequence.num_computed // size
    if first == end:
        return
    hashes = sequence.full_block_hashes(size, end * size)
    table = sequence.block_table.view()
    for index in range(first, end):
        if table[index] != NO_BLOCK:
            pool.publish(int(table[index]), hashes[index])


def num_outside_window(pool: BlockPool, sequence: Sequence, window: int | None) -> int:
    """Leading blocks that no token after the first `num_tokens` attends to."""
    if window is None:
        return 0
    return num_blocks_outside(sequence.num_tokens, window=window, block_size=pool.block_size)


def release_outside_window(pool: BlockPool, sequence: Sequence, window: int | None) -> None:
    """Gives back blocks that no token after the computed ones attends to."""
    if window is None:
        return
    outside = num_blocks_outside(sequence.num_computed, window=window, block_size=pool.block_size)
    pool.release(sequence.holder, sequence.block_table.drop_leading(outside))


def num_unfilled_slots(pool: BlockPool, sequences: list[Sequence]) -> int:
    """Token slots in the sequences' blocks that hold no KV."""
    return sum(len(s.block_table) * pool.block_size - s.num_computed for s in sequences)
