"""Which prompt tokens the next step computes: pure decisions over the block pool.

First come, first served within a priority; a better priority overtakes between chunks. One step
takes at most `prefill_chunk_tokens` prompt tokens over all prompts. What runs in the background
(a batch) joins no step with others' prompts, which would take longer for it: so nobody waits for it
but until its present chunk has ended. A prompt is admitted only if all blocks it will need are
available beyond those promised to prompts admitted before it, so an admitted prompt never waits for
another; blocks themselves are taken chunk by chunk. A prompt at the head of the queue that doesn't
fit holds back those behind it: smaller ones must not starve it.
"""

from __future__ import annotations

import bisect

from engine.plan import MAX_SCORED, PlannedChunk, prompt_chunk
from engine.sequence import Sequence, SequenceStatus
from engine.sequence_blocks import (
    match_prefix,
    num_missing_blocks,
    publish_full_blocks,
    release_outside_window,
)
from kv_cache.block_pool import BlockPool, OutOfBlocksError


class PrefillScheduler:
    """Waiting and running prompts, each in serving order."""

    def __init__(
        self, pool: BlockPool, *, chunk_tokens: int, max_num_seqs: int, window: int | None
    ) -> None:
        self._pool = pool
        self._chunk_tokens = chunk_tokens
        self._max_num_seqs = max_num_seqs
        self._window = window
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []

    def add(self, sequence: Sequence) -> None:
        bisect.insort(self.waiting, sequence, key=lambda s: s.order)

    def remove(self, sequence: Sequence) -> None:
        """Ends the sequence wherever it is and releases what it holds. Leases stay."""
        queue = self.waiting if sequence.status is SequenceStatus.WAITING else self.running
        queue.remove(sequence)
        sequence.set_status(SequenceStatus.FINISHED)
        self._pool.release(sequence.holder)

    def next_chunks(self) -> list[PlannedChunk]:
        """Chunks of the next step, their blocks allocated; admits as many prompts as they use."""
        chunks: list[PlannedChunk] = []
        budget, scored = self._chunk_tokens, MAX_SCORED
        while budget > 0:
            sequence = self._next_sequence(chunks)
            if sequence is None:
                break
            num_tokens = min(budget, sequence.num_uncomputed)
            if sequence.scores_prompt:
                num_tokens = min(num_tokens, scored)
                if num_tokens == 0:
                    break
            self._allocate(sequence, num_tokens)
            chunks.append(prompt_chunk(sequence, num_tokens))
            budget -= num_tokens
            scored -= chunks[-1].num_scored
        return chunks

    def complete(self, chunk: PlannedChunk) -> None:
        """Takes the chunk as computed and publishes the blocks it filled."""
        sequence = chunk.sequence
        sequence.num_computed += chunk.num_tokens
        publish_full_blocks(self._pool, sequence, chunk.num_tokens)

    def release_outside_window(self, sequence: Sequence) -> None:
        """Gives back blocks that no later token attends to; call once their grant is made."""
        release_outside_window(self._pool, sequence, self._window)

    def _next_sequence(self, chunks: list[PlannedChunk]) -> Sequence | None:
        """The best prompt that isn't in this step yet and may join it: running ones are planned
        from the front."""
        planned = len(chunks)
        running = self.running[planned] if planned < len(self.running) else None
        head = self.waiting[0] if self.waiting else None
        if head is not None and (running is None or head.order < running.order):
            overtakes = _may_join(chunks, head) and self._admit(head, position=planned)
            running = head if overtakes else running
        return running if running is not None and _may_join(chunks, running) else None

    def _admit(self, sequence: Sequence, *, position: int) -> bool:
        if len(self.running) >= self._max_num_seqs:
            return False
        matched = match_prefix(self._pool, sequence)
        self._pool.share(sequence.holder, matched)
        needed = num_missing_blocks(self._pool, sequence, sequence.num_tokens) - len(matched)
        if needed + self.num_promised_blocks > self._pool.num_available:
            self._pool.release(sequence.holder)
            return False
        sequence.block_table.extend(matched)
        sequence.num_computed = len(matched) * self._pool.block_size
        self.waiting.remove(sequence)
        sequence.set_status(SequenceStatus.RUNNING)
        self.running.insert(position, sequence)
        return True

    @property
    def num_promised_blocks(self) -> int:
        """Blocks that admitted prompts have not taken yet but are sure to get."""
        return sum(num_missing_blocks(self._pool, s, s.num_tokens) for s in self.running)

    def _allocate(self, sequence: Sequence, num_tokens: int) -> None:
        end = sequence.num_computed + num_tokens
        needed = num_missing_blocks(self._pool, sequence, end)
        try:
            sequence.block_table.extend(self._pool.allocate(sequence.holder, needed))
        except OutOfBlocksError as error:
            raise AssertionError("blocks promised at admission were given to others") from error


def _may_join(chunks: list[PlannedChunk], sequence: Sequence) -> bool:
    """Whether nobody in the step waits for a prompt of the background on its account."""
    first = chunks[0].sequence if chunks else sequence
    return first.in_background or not sequence.in_background
