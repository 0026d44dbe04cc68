"""Which tokens the next decode step computes, and who gets blocks: pure decisions over the pool.

Sequences are served in one order: priority, then arrival. A running one gets the block its next
token needs; if none is available, the last running sequence in that order is preempted for it (its
KV is dropped, its tokens kept, it waits in its old place). A sequence with nobody behind it sits
this step out and keeps what it has. So the first in order always proceeds, and with it the whole.

Admission counts growth: a sequence enters if its tokens fit beside `growth_tokens` more for each
one inside. What that doesn't foresee, preemption settles. Imports are never preempted: they end by
deadline. What has more choices than a step has rows enters alone; choices without a row wait.

A sequence whose KV is missing here (no handoff, or preempted) is computed in chunks among the
others: one step takes at most `chunk_tokens` of such tokens, and one that waits goes before those
it precedes in order as soon as their present chunk has ended. What runs in the background (a batch)
is computed in no step in which others are.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field

from engine.plan import MAX_SCORED, PlannedChunk, prompt_chunk
from engine.sequence import NO_BLOCK, Sequence, SequenceStatus
from engine.sequence_blocks import (
    match_prefix,
    num_missing_blocks,
    num_outside_window,
    publish_full_blocks,
    release_outside_window,
)
from kv_cache.block_pool import BlockPool, Holder, HolderKind


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """Bounds of one step and of what runs at once."""

    max_num_seqs: int
    max_num_batched_tokens: int
    chunk_tokens: int
    growth_tokens: int
    window: int | None


@dataclass(slots=True)
class Decision:
    """One step: its chunks, and imports that were given their blocks and may be pulled now."""

    chunks: list[PlannedChunk] = field(default_factory=list)
    imports: list[Sequence] = field(default_factory=list)
    num_scored: int = 0
    computes_foreground: bool = False
    """Whether it computes a prompt that is no background's."""

    def add_prompt(self, sequence: Sequence, num_tokens: int) -> None:
        """The next tokens of a sequence that is still being computed."""
        chunk = prompt_chunk(sequence, num_tokens)
        self.chunks.append(chunk)
        self.num_scored += chunk.num_scored
        self.computes_foreground |= not sequence.in_background

    def longest(self, sequence: Sequence, budget: int) -> int:
        """How many of the sequence's tokens the step can take."""
        if sequence.in_background and self.computes_foreground:
            return 0
        longest = min(sequence.num_uncomputed, budget)
        return min(longest, MAX_SCORED - self.num_scored) if sequence.scores_prompt else longest


@dataclass(frozen=True, slots=True)
class Fork:
    """A choice that split off its prompt; `copy` is the partly filled block it got a copy of."""

    sequence: Sequence
    copy: tuple[int, int] | None


def import_holder(sequence: Sequence) -> Holder:
    """Who holds blocks whose KV is on its way."""
    return Holder(HolderKind.IMPORT, sequence.transfer_id)


class DecodeScheduler:
    """Waiting, importing and running sequences, each in serving order."""

    def __init__(self, pool: BlockPool, limits: DecodeLimits) -> None:
        self._pool = pool
        self._limits = limits
        self._to_import: set[str] = set()
        self.waiting: list[Sequence] = []
        self.importing: list[Sequence] = []
        self.running: list[Sequence] = []
        self.num_preemptions = 0

    def add(self, sequence: Sequence, *, has_handoff: bool = False) -> None:
        """Queues a new sequence; with a handoff its KV is to be pulled, else computed here."""
        if has_handoff:
            self._to_import.add(sequence.transfer_id)
        _insert(self.waiting, sequence)

    def remove(self, sequence: Sequence) -> None:
        """Ends the sequence wherever it is; the one release path."""
        self._queue_of(sequence).remove(sequence)
        self._to_import.discard(sequence.transfer_id)
        if sequence.status is SequenceStatus.IMPORTING:
            self._pool.release(import_holder(sequence))
        sequence.set_status(SequenceStatus.FINISHED)
        self._pool.release(sequence.holder)

    def next_step(self) -> Decision:
        """Grows running sequences, admits waiting ones, and plans the step's chunks."""
        decision = Decision()
        self._let_overtake()
        self._plan_running(decision)
        self._admit_waiting(decision)
        return decision

    def imported(self, sequence: Sequence) -> None:
        """The pull closed: its blocks are the sequence's, all its tokens have KV."""
        self._pool.move(import_holder(sequence), sequence.holder)
        self.importing.remove(sequence)
        sequence.set_status(SequenceStatus.RUNNING)
        _insert(self.running, sequence)
        self.computed(sequence, sequence.num_uncomputed)

    def computed(self, sequence: Sequence, num_tokens: int) -> None:
        """The next `num_tokens` tokens have KV now."""
        size, before = self._pool.block_size, sequence.num_computed
        sequence.num_computed = before + num_tokens
        if before // size != sequence.num_computed // size:
            publish_full_blocks(self._pool, sequence, num_tokens)
        if self._limits.window is not None:
            release_outside_window(self._pool, sequence, self._limits.window)

    def fork(self, parent: Sequence, choice: int) -> Fork:
        """Splits a choice off a finished prompt: full blocks are shared, the last one copied.

        If there is no block for the copy, or no row in a step, the choice waits and computes its
        tokens itself.
        """
        child = parent.fork(choice)
        table = parent.block_table
        num_full = parent.num_computed // self._pool.block_size
        tail = table.held(num_full)
        if len(tail) > self._pool.num_available or not self._has_row_beside(parent):
            _insert(self.waiting, child)
            return Fork(child, None)
        self._pool.share(child.holder, table.held(0, num_full))
        child.block_table.extend(table.view()[:num_full].tolist())
        copies = self._pool.allocate(child.holder, len(tail))
        child.block_table.extend(copies)
        child.num_computed = parent.num_computed
        child.set_status(SequenceStatus.RUNNING)
        _insert(self.running, child)
        return Fork(child, (tail[0], copies[0]) if tail else None)

    def _has_row_beside(self, parent: Sequence) -> bool:
        """Whether one more may run, `parent` itself counting as the one choice it will be."""
        others = [s for s in [*self.running, *self.importing] if s is not parent]
        return sum(len(s.choices) for s in others) + 1 < self._limits.max_num_seqs

    @property
    def num_promised_blocks(self) -> int:
        """Blocks that admitted sequences may still grow into."""
        inside = [*self.running, *self.importing]
        return sum(self._growth(s, s.max_tokens_total) for s in inside)

    def _let_overtake(self) -> None:
        """Admits who waits to be computed and precedes somebody who is: it gets the next chunk."""
        while self.waiting:
            head = self.waiting[0]
            behind = (s for s in self.running if s.num_uncomputed > 1 and head.order < s.order)
            if head.transfer_id in self._to_import or next(behind, None) is None:
                return
            if not self._admit(head, imports=False):
                return

    def _plan_running(self, decision: Decision) -> None:
        num_decode = sum([s.num_uncomputed == 1 for s in self.running])
        spare = self._limits.max_num_batched_tokens - num_decode
        budget = min(self._limits.chunk_tokens, max(0, spare))
        index = 0
        while index < len(self.running):  # preemption shortens the list at its end
            sequence = self.running[index]
            if sequence.num_uncomputed == 1:
                if self._ensure_blocks(sequence, 1):
                    decision.chunks.append(PlannedChunk(sequence, 1, sequence.choices))
            else:
                wanted = decision.longest(sequence, budget)
                if wanted and self._ensure_blocks(sequence, wanted):
                    decision.add_prompt(sequence, wanted)
                    budget -= wanted
            index += 1
        self._chunk_budget = budget

    def _ensure_blocks(self, sequence: Sequence, num_tokens: int) -> bool:
        """Takes what the next `num_tokens` tokens need, from those behind in order if need be."""
        end = sequence.num_computed + num_tokens
        if end <= len(sequence.block_table) * self._pool.block_size:
            return True
        needed = num_missing_blocks(self._pool, sequence, end)
        while needed > self._pool.num_available:
            if self.running[-1] is sequence:
                return False
            self._preempt(self.running[-1])
        sequence.block_table.extend(self._pool.allocate(sequence.holder, needed))
        return True

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._pool.release(sequence.holder)
        sequence.restart()
        sequence.set_status(SequenceStatus.WAITING)
        _insert(self.waiting, sequence)
        self.num_preemptions += 1

    def _admit_waiting(self, decision: Decision) -> None:
        """In order, the head holding back the rest, so that nothing starves behind smaller ones."""
        while self.waiting:
            head = self.waiting[0]
            imports = head.transfer_id in self._to_import
            if not imports and decision.longest(head, self._chunk_budget) <= 0:
                break
            if not self._admit(head, imports=imports):
                break
            if imports:
                decision.imports.append(head)
            else:
                num_tokens = decision.longest(head, self._chunk_budget)
                taken = self._ensure_blocks(head, num_tokens)
                assert taken, "admission checked that the tokens fit"
                decision.add_prompt(head, num_tokens)
                self._chunk_budget -= num_tokens

    def _admit(self, sequence: Sequence, *, imports: bool) -> bool:
        inside = [*self.running, *self.importing]
        num_rows = sum(len(s.choices) for s in [*inside, sequence])
        if inside and num_rows > self._limits.max_num_seqs:
            return False
        num_tokens = sequence.num_tokens if imports else None
        matched = match_prefix(self._pool, sequence, num_tokens=num_tokens)
        self._pool.share(sequence.holder, matched)
        if not self._fits(sequence, len(matched), inside):
            self._pool.release(sequence.holder)
            return False
        sequence.block_table.extend(matched)
        sequence.num_computed = len(matched) * self._pool.block_size
        self.waiting.remove(sequence)
        if imports:
            self._reserve_import(sequence)
        else:
            sequence.set_status(SequenceStatus.RUNNING)
            _insert(self.running, sequence)
        return True

    def _fits(self, sequence: Sequence, num_matched: int, inside: list[Sequence]) -> bool:
        """Its own tokens for certain; the foreseen growth of all, unless it would be alone."""
        own = num_missing_blocks(self._pool, sequence, sequence.num_tokens) - num_matched
        if not inside:
            return own <= self._pool.num_available
        growth = sum(self._foreseen_growth(s) for s in [*inside, sequence])
        return own + growth <= self._pool.num_available

    def _foreseen_growth(self, sequence: Sequence) -> int:
        """Blocks for all tokens it has, if it is still being computed, and for some more."""
        end = min(sequence.num_tokens + self._limits.growth_tokens, sequence.max_tokens_total)
        return self._growth(sequence, end)

    def _growth(self, sequence: Sequence, end: int) -> int:
        """Blocks between what the sequence has and `end` tokens, for all its choices."""
        size = self._pool.block_size
        have = len(sequence.block_table)
        if sequence.status is SequenceStatus.WAITING:
            have = -(-sequence.num_tokens // size)
        return max(0, -(-end // size) - have) * len(sequence.choices)

    def _reserve_import(self, sequence: Sequence) -> None:
        """Blocks for all tokens that D lacks, except those no later token attends to."""
        outside = num_outside_window(self._pool, sequence, self._limits.window)
        sequence.block_table.extend([NO_BLOCK] * (outside - len(sequence.block_table)))
        needed = num_missing_blocks(self._pool, sequence, sequence.num_tokens)
        blocks = self._pool.allocate(import_holder(sequence), needed)
        sequence.block_table.extend(blocks)
        self._to_import.discard(sequence.transfer_id)
        sequence.set_status(SequenceStatus.IMPORTING)
        _insert(self.importing, sequence)

    def _queue_of(self, sequence: Sequence) -> list[Sequence]:
        match sequence.status:
            case SequenceStatus.WAITING:
                return self.waiting
            case SequenceStatus.IMPORTING:
                return self.importing
            case _:
                return self.running


def _insert(queue: list[Sequence], sequence: Sequence) -> None:
    bisect.insort(queue, sequence, key=lambda s: s.order)
