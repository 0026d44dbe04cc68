"""The life of an attempt on a prefill worker.

Submit                 refused (AttemptFailed), or waits in serving order
first chunk scheduled  lease offered to pulls, Started(handoff) sent
chunk ends             its full blocks go under the lease and are granted to the pull
last chunk ends        prefixes pinned as asked (Pinned); first tokens of all choices sampled and
                       sent, the pull closed with them, AttemptDone sent; the lease keeps the blocks
lease ends             pulled, aborted, expired or link lost: blocks released; a prefill under
                       way stops (AttemptFailed, retryable): nobody will fetch it
Cancel, deadline       takes effect between chunks, whatever the stage
"""

from __future__ import annotations

from dataclasses import dataclass

from core.handoff import Started
from core.load import LoadReport
from core.request import (
    AttemptDone,
    FinishReason,
    LegTimings,
    TokenEvent,
)
from engine.intake import Deadlines, Limits, Tombstones, failed, refuse, refuse_id
from engine.kv_lender import KVLender
from engine.pinning import earliest, pin_prompt
from engine.plan import PlannedChunk, StepPlan, make_plan
from engine.prompt_scores import split_scores
from engine.role import Cancel, Submit
from engine.sampler import Sampled
from engine.sequence import Sequence
from engine.sequence_blocks import num_unfilled_slots
from engine.stop import finish_reason
from kv_cache.block_hash import root_hash
from kv_cache.block_pool import BlockPool
from kv_transfer.events import FirstToken, LeaseEnded
from prefill_worker.scheduler import PrefillScheduler
from protos.codec import WorkerEvent


@dataclass(slots=True)
class _Task:
    sequence: Sequence
    submitted_at: float
    started_at: float | None = None
    num_granted: int = 0


class PrefillRole:
    """Owns prompts from submission to first tokens, and leases from first chunk to release."""

    def __init__(
        self,
        pool: BlockPool,
        scheduler: PrefillScheduler,
        lender: KVLender,
        limits: Limits,
        *,
        compat_key: str,
        eos_token_ids: tuple[int, ...],
    ) -> None:
        self.pool = pool
        self._scheduler = scheduler
        self._lender = lender
        self._limits = limits
        self._compat_key = compat_key
        self._eos_token_ids = eos_token_ids
        self._tasks: dict[str, _Task] = {}
        self._tombstones = Tombstones()
        self._deadlines = Deadlines()
        self._events: list[WorkerEvent] = []

    def handle(self, message: object, now: float) -> None:
        match message:
            case Submit():
                self._submit(message, now)
            case Cancel():
                self._cancel(message)
            case LeaseEnded():
                self._lease_ended(message)
            case _:
                raise AssertionError(f"a prefill role does not take {message!r}")

    def schedule(self, now: float) -> StepPlan | None:
        self.pool.expire_pins(now)
        for transfer_id in self._deadlines.pop_expired(now):
            self._fail(transfer_id, "deadline_exceeded", "the deadline passed during prefill")
        chunks = self._scheduler.next_chunks()
        for chunk in chunks:
            self._start(chunk.sequence, now)
        return make_plan(chunks, sum(chunk.num_scored for chunk in chunks))

    def complete(self, plan: StepPlan, sampled: list[Sampled], now: float) -> None:
        scores, drawn_tokens = split_scores(plan, sampled)
        self._events += scores
        tokens = iter(drawn_tokens)
        for chunk in plan.chunks:
            drawn = [next(tokens) for _ in chunk.sample_choices]
            self._grant(chunk)
            if drawn:
                self._finish(chunk, drawn, now)
            else:
                self._scheduler.release_outside_window(chunk.sequence)

    def fail(self, transfer_id: str, code: str, message: str) -> None:
        self._fail(transfer_id, code, message)

    def take_events(self) -> list[WorkerEvent]:
        events, self._events = self._events, []
        return events

    def next_deadline(self) -> float | None:
        return earliest(self._deadlines.next(), self.pool.next_pin_expiry())

    def load(self) -> LoadReport:
        scheduler = self._scheduler
        pending = [*scheduler.running, *scheduler.waiting]
        return LoadReport(
            num_waiting=len(scheduler.waiting),
            num_running=len(scheduler.running),
            waiting_prefill_tokens=sum(s.num_uncomputed for s in pending),
            kv_blocks=self.pool.blocks_by_state(),
            num_promised_blocks=scheduler.num_promised_blocks,
            kv_unfilled_slots=num_unfilled_slots(self.pool, scheduler.running),
            pinned_blocks=self.pool.pinned_by_owner(),
            num_pins_dropped=self.pool.num_pins_dropped,
        )

    @property
    def num_unfinished(self) -> int:
        return len(self._tasks.keys() | self._lender.open)

    def _submit(self, message: Submit, now: float) -> None:
        attempt = message.attempt
        transfer_id = attempt.transfer_id
        refusal = refuse_id(transfer_id, over=self._tombstones, in_use=self._tasks) or refuse(
            attempt, self._limits, num_waiting=len(self._scheduler.waiting)
        )
        if refusal is not None:
            self._events.append(refusal)
            return
        root = root_hash(self._compat_key, attempt.cache_salt, attempt.adapter)
        assert bool(attempt.grammar) == (message.grammar is not None)
        sequence = Sequence(
            attempt, attempt.choices, arrival=now, root=root, grammar=message.grammar
        )
        self._tasks[transfer_id] = _Task(sequence, submitted_at=now)
        self._deadlines.set(transfer_id, now + attempt.deadline_s)
        self._scheduler.add(sequence)

    def _cancel(self, message: Cancel) -> None:
        """Some choices only: the rest goes on. All, or the last: everything is given back."""
        transfer_id = message.transfer_id
        task = self._tasks.get(transfer_id)
        if task is not None and message.choices:
            left = tuple(c for c in task.sequence.choices if c not in message.choices)
            if left:
                task.sequence.choices = left
                return
        self._tombstones.add(transfer_id)
        if task is not None:
            self._fail(transfer_id, "cancelled", "cancelled by the router")
        else:
            self._lender.cancel(transfer_id)

    def _lease_ended(self, message: LeaseEnded) -> None:
        """Gives the blocks back. A prompt still being computed is for nobody now, and stops."""
        transfer_id = message.transfer_id
        self._lender.ended(message)
        if transfer_id in self._tasks:
            self._fail(
                transfer_id,
                "transfer_failed",
                f"the lease ended during prefill: {message.outcome}",
                retryable=True,
                reason=str(message.outcome),
            )

    def _start(self, sequence: Sequence, now: float) -> None:
        """On a prompt's first chunk: opens the lease and tells the router where to pull from."""
        task = self._tasks[sequence.transfer_id]
        if task.started_at is not None:
            return
        task.started_at = now
        handoff = self._lender.offer(
            sequence.transfer_id,
            num_tokens=sequence.num_tokens,
            deadline=task.submitted_at + sequence.attempt.deadline_s,
        )
        task.num_granted = handoff.first_block
        queue_s = now - task.submitted_at
        self._events.append(Started(handoff.transfer_id, queue_s, sequence.num_computed, handoff))

    def _grant(self, chunk: PlannedChunk) -> None:
        """Puts completed blocks, cached ones included, under the lease and grants them."""
        sequence = chunk.sequence
        task = self._tasks[sequence.transfer_id]
        self._scheduler.complete(chunk)
        table = sequence.block_table
        done = sequence.num_uncomputed == 0
        end = len(table) if done else sequence.num_computed // self.pool.block_size
        if end <= task.num_granted:
            return
        blocks = table.view()[task.num_granted : end].tolist()
        self._lender.grant(sequence.transfer_id, task.num_granted, blocks)
        task.num_granted = end

    def _finish(self, chunk: PlannedChunk, drawn: list[Sampled], now: float) -> None:
        sequence = chunk.sequence
        transfer_id = sequence.transfer_id
        task = self._tasks.pop(transfer_id)
        self._deadlines.discard(transfer_id)
        self._tombstones.add(transfer_id)
        if pinned := pin_prompt(self.pool, sequence, now):
            self._events.append(pinned)
        self._scheduler.remove(sequence)
        first_tokens: list[FirstToken] = []
        for choice, token in zip(chunk.sample_choices, drawn, strict=True):
            event = self._token_event(sequence, choice, token)
            self._events.append(event)
            ended = event.finish_reason is not None
            first_tokens.append(FirstToken(choice, token.token_id, ended))
        if all(token.finished for token in first_tokens):
            self._lender.finish(transfer_id)
        else:
            self._lender.close(transfer_id, first_tokens)
        assert task.started_at is not None
        timings = LegTimings(
            queue_s=task.started_at - task.submitted_at, prefill_s=now - task.started_at
        )
        self._events.append(AttemptDone(transfer_id, timings))

    def _token_event(self, sequence: Sequence, choice: int, token: Sampled) -> TokenEvent:
        reason: FinishReason | None = finish_reason(
            sequence.sampling,
            token.token_id,
            sequence.num_output_tokens + 1,
            self._eos_token_ids,
            sequence.completes(token.token_id),
        )
        return TokenEvent(
            transfer_id=sequence.transfer_id,
            choice=choice,
            position=sequence.num_output_tokens,
            token_id=token.token_id,
            logprobs=token.logprobs,
            finish_reason=reason,
        )

    def _fail(
        self,
        transfer_id: str,
        code: str,
        message: str,
        *,
        retryable: bool = False,
        reason: str = "",
    ) -> None:
        task = self._tasks.pop(transfer_id)
        self._deadlines.discard(transfer_id)
        self._tombstones.add(transfer_id)
        self._scheduler.remove(task.sequence)
        self._lender.cancel(transfer_id)
        self._events.append(failed(transfer_id, code, message, retryable=retryable, reason=reason))
