"""The life of an attempt on a decode worker.

Submit              refused (AttemptFailed), or waits in serving order
admitted            with a handoff: blocks reserved, the pull opened; the rest steps meanwhile
                    without: its tokens are computed here in chunks, Started sent with the first;
                    once they are, prefixes are pinned as asked (Pinned)
BlocksArrived       unpacked into blocks that still import this transfer; else thrown away
PullClosed          first tokens known: choices fork off the shared blocks and run
each step           one token for each running choice, sent as TokenEvent
last choice ends    AttemptDone; nothing is held any more
PullNeedless        P finished every choice: AttemptDone
PullFailed          AttemptFailed, retryable: the router prefills again
Move                a choice with KV leaves right after its next step: its blocks go under a lease,
                    Moved tells where they are; one without, at once. AttemptDone with the last
Cancel, deadline    takes effect between steps, whatever the stage
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from core.handoff import Handoff, Moved, Started
from core.load import LoadReport
from core.request import Attempt, AttemptDone, AttemptFailed, TokenEvent
from decode_worker.departures import Departures
from decode_worker.ports import KVOps, KVReceiver
from decode_worker.scheduler import DecodeScheduler, import_holder
from decode_worker.task import Task
from engine.intake import Deadlines, Limits, Tombstones, failed, refuse, refuse_id
from engine.kv_lender import KVLender
from engine.pinning import earliest, pin_prompt
from engine.plan import PlannedChunk, StepPlan, make_plan
from engine.prompt_scores import split_scores
from engine.role import Cancel, Move, Submit
from engine.sampler import Sampled
from engine.sequence import Sequence, SequenceStatus
from engine.sequence_blocks import num_unfilled_slots
from engine.stop import finish_reason
from kv_cache.block_hash import root_hash
from kv_cache.block_pool import BlockPool
from kv_transfer.events import (
    BlocksArrived,
    FirstToken,
    LeaseEnded,
    PullClosed,
    PullFailed,
    PullNeedless,
)
from protos.codec import WorkerEvent


class DecodeRole:
    """Owns attempts from submission to the last token of their last choice."""

    def __init__(
        self,
        pool: BlockPool,
        scheduler: DecodeScheduler,
        receiver: KVReceiver,
        kv_ops: KVOps,
        limits: Limits,
        *,
        compat_key: str,
        eos_token_ids: tuple[int, ...],
        lender: KVLender | None = None,
    ) -> None:
        """Without a lender, what is asked to move has to be computed anew where it goes."""
        self.pool = pool
        self._scheduler = scheduler
        self._receiver = receiver
        self._kv_ops = kv_ops
        self._limits = limits
        self._compat_key = compat_key
        self._eos_token_ids = eos_token_ids
        self._departures = Departures(lender)
        self._tasks: dict[str, Task] = {}
        self._leaving: set[str] = set()
        """Attempts that were asked to move."""
        self._tombstones = Tombstones()
        self._deadlines = Deadlines()
        self._events: list[WorkerEvent] = []

    def handle(self, message: object, now: float) -> None:
        match message:
            case Submit():
                self._submit(message, now)
            case Cancel():
                self._cancel(message)
            case Move():
                self._move(message)
            case LeaseEnded():
                self._departures.ended(message)
            case BlocksArrived():
                self._unpack(message)
            case PullClosed():
                self._start_choices(message, now)
            case PullNeedless():
                self._pull_needless(message)
            case PullFailed():
                self._pull_failed(message)
            case _:
                raise AssertionError(f"a decode role does not take {message!r}")

    def schedule(self, now: float) -> StepPlan | None:
        self.pool.expire_pins(now)
        for transfer_id in self._deadlines.pop_expired(now):
            self._fail(transfer_id, "deadline_exceeded", "the deadline passed during decode")
        self._hand_back()
        decision = self._scheduler.next_step()
        for sequence in decision.imports:
            self._open_pull(sequence, now)
        for chunk in decision.chunks:
            self._note_step(chunk.sequence, now)
        return make_plan(decision.chunks, decision.num_scored)

    def complete(self, plan: StepPlan, sampled: list[Sampled], now: float) -> None:
        if plan.num_scored:
            scores, sampled = split_scores(plan, sampled)
            self._events += scores
        next_token = 0
        for chunk in plan.chunks:
            first, next_token = next_token, next_token + len(chunk.sample_choices)
            self._scheduler.computed(chunk.sequence, chunk.num_tokens)
            if first < next_token:
                self._emit(chunk, sampled[first:next_token], now)
        if self._leaving:
            self._depart(plan)

    def fail(self, transfer_id: str, code: str, message: str) -> None:
        self._fail(transfer_id, code, message)

    def take_events(self) -> list[WorkerEvent]:
        events, self._events = self._events, []
        return events

    def next_deadline(self) -> float | None:
        return earliest(self._deadlines.next(), self.pool.next_pin_expiry())

    def load(self) -> LoadReport:
        scheduler = self._scheduler
        return LoadReport(
            num_waiting=len(scheduler.waiting),
            num_running=sum([len(s.choices) for s in [*scheduler.running, *scheduler.importing]]),
            waiting_prefill_tokens=sum(
                [s.num_uncomputed for s in [*scheduler.running, *scheduler.waiting]]
            ),
            kv_blocks=self.pool.blocks_by_state(),
            num_promised_blocks=scheduler.num_promised_blocks,
            kv_unfilled_slots=num_unfilled_slots(self.pool, scheduler.running),
            pinned_blocks=self.pool.pinned_by_owner(),
            num_pins_dropped=self.pool.num_pins_dropped,
            num_preemptions=scheduler.num_preemptions,
        )

    @property
    def num_unfinished(self) -> int:
        return len(self._tasks) + len(self._departures)

    def _submit(self, message: Submit, now: float) -> None:
        attempt, handoff = message.attempt, message.handoff
        transfer_id = attempt.transfer_id
        refusal = refuse_id(transfer_id, over=self._tombstones, in_use=self._tasks) or refuse(
            attempt, self._limits, num_waiting=len(self._scheduler.waiting)
        )
        if refusal is None and handoff is not None:
            refusal = self._refuse_handoff(attempt, handoff)
        if refusal is not None:
            self._events.append(refusal)
            return
        root = root_hash(self._compat_key, attempt.cache_salt, attempt.adapter)
        assert bool(attempt.grammar) == (message.grammar is not None)
        sequence = Sequence(
            attempt, attempt.choices, arrival=now, root=root, grammar=message.grammar
        )
        sequence.wants_scores &= handoff is None
        self._tasks[transfer_id] = Task(attempt, handoff, now, [sequence])
        self._deadlines.set(transfer_id, now + attempt.deadline_s)
        self._scheduler.add(sequence, has_handoff=handoff is not None)

    def _refuse_handoff(self, attempt: Attempt, handoff: Handoff) -> AttemptFailed | None:
        reason = "incompatible"
        if handoff.compat_key != self._compat_key:
            message = f"KV of {handoff.worker_id} means nothing here: compat keys differ"
        elif handoff.transfer_id != attempt.transfer_id:
            reason = "unknown_transfer"
            message = f"the handoff is of another transfer, {handoff.transfer_id}"
        elif handoff.num_tokens != len(attempt.token_ids):
            message = f"handoff of {handoff.num_tokens} tokens for {len(attempt.token_ids)}"
        else:
            return None
        return failed(
            attempt.transfer_id, "transfer_failed", message, retryable=True, reason=reason
        )

    def _cancel(self, message: Cancel) -> None:
        """Some choices only: the rest goes on. All, or the last: everything is given back."""
        transfer_id = message.transfer_id
        task = self._tasks.get(transfer_id)
        if not message.choices:
            self._departures.cancel(transfer_id)
        if task is None:
            if not message.choices:
                self._tombstones.add(transfer_id)
            return
        unwanted = message.choices or task.attempt.choices
        for sequence in list(task.sequences):
            left = tuple(c for c in sequence.choices if c not in unwanted)
            if left:
                sequence.choices = left
            else:
                self._end(task, sequence)
        if not task.sequences:
            self._tombstones.add(transfer_id)
            self._fail(transfer_id, "cancelled", "cancelled by the router")

    def _move(self, message: Move) -> None:
        if message.transfer_id in self._tasks:
            self._leaving.add(message.transfer_id)
            self._hand_back()

    def _hand_back(self) -> None:
        """What leaves and has no KV: waiting, preempted, being imported or still being computed."""
        for task in [self._tasks[transfer_id] for transfer_id in self._leaving]:
            for sequence in list(task.sequences):
                if not self._departures.may_take(sequence):
                    self._events.append(Moved(sequence.transfer_id, sequence.choices))
                    self._end(task, sequence)
            self._finish_if_over(task)

    def _depart(self, plan: StepPlan) -> None:
        """What leaves and was in this step takes its KV along."""
        for chunk in plan.chunks:
            sequence = chunk.sequence
            if sequence.transfer_id in self._leaving and self._departures.may_take(sequence):
                task = self._tasks[sequence.transfer_id]
                deadline = task.submitted_at + task.attempt.deadline_s
                self._events.append(self._departures.leave(sequence, deadline))
                self._end(task, sequence)
                self._finish_if_over(task)

    def _open_pull(self, sequence: Sequence, now: float) -> None:
        task = self._tasks[sequence.transfer_id]
        assert task.handoff is not None
        task.admitted_at = now
        num_held = len(sequence.block_table) - len(self.pool.holds(import_holder(sequence)))
        self._receiver.pull(task.handoff, num_held)

    def _unpack(self, message: BlocksArrived) -> None:
        task = self._tasks.get(message.transfer_id)
        if task is not None:
            sequence = task.sequences[0]
            assert sequence.status is SequenceStatus.IMPORTING
            table = sequence.block_table.view()
            first = message.first_block
            blocks = table[first : first + message.num_blocks].tolist()
            message.others_unpack(blocks)
            self._kv_ops.unpack(blocks, message.staging)
        message.release()

    def _start_choices(self, message: PullClosed, now: float) -> None:
        """The prompt's KV is here; its choices' first tokens are known and already sent by P."""
        task = self._tasks.get(message.transfer_id)
        if task is None:
            return
        task.pulled_at = now
        task.chunk_ended_at = now - message.chunk_end_age_s
        sequence = task.sequences[0]
        self._scheduler.imported(sequence)
        wanted = [t for t in message.first_tokens if t.choice in sequence.choices]
        self._run_choices(task, sequence, wanted)
        self._finish_if_over(task)

    def _run_choices(self, task: Task, parent: Sequence, tokens: Seq[FirstToken]) -> None:
        """Gives each choice its first token; all but one fork off the prompt, ended ones stop."""
        live = [token for token in tokens if not token.finished]
        if not live:
            self._end(task, parent)
            return
        copies: list[tuple[int, int]] = []
        for token in live[1:]:
            fork = self._scheduler.fork(parent, token.choice)
            fork.sequence.append(token.token_id)
            task.sequences.append(fork.sequence)
            copies += [fork.copy] if fork.copy else []
        if copies:
            self._kv_ops.copy_blocks(copies)
        parent.choices = (live[0].choice,)
        parent.append(live[0].token_id)

    def _pull_needless(self, message: PullNeedless) -> None:
        """P's first tokens were the last ones; the router has them from P."""
        task = self._tasks.get(message.transfer_id)
        if task is not None:
            for sequence in list(task.sequences):
                self._end(task, sequence)
            self._finish_if_over(task)

    def _pull_failed(self, message: PullFailed) -> None:
        if message.transfer_id in self._tasks:
            self._fail(
                message.transfer_id,
                "transfer_failed",
                message.message,
                retryable=True,
                reason=message.reason,
            )

    def _note_step(self, sequence: Sequence, now: float) -> None:
        """Times of an attempt's first step, and Started where it is this worker that prefills."""
        task = self._tasks[sequence.transfer_id]
        if task.stepped_at is not None:
            return
        task.stepped_at = now
        if task.handoff is None:
            task.admitted_at = now
            queue_s = now - task.submitted_at
            self._events.append(Started(sequence.transfer_id, queue_s, sequence.num_computed))

    def _emit(self, chunk: PlannedChunk, drawn: list[Sampled], now: float) -> None:
        sequence = chunk.sequence
        task = self._tasks[sequence.transfer_id]
        if task.handoff is None and task.computed_at is None:
            task.computed_at = now
            if pinned := pin_prompt(self.pool, sequence, now):
                self._events.append(pinned)
        if len(drawn) == 1:
            self._emit_one(task, chunk, drawn[0])
            return
        tokens: list[FirstToken] = []
        for choice, token in zip(chunk.sample_choices, drawn, strict=True):
            event = self._token_event(sequence, choice, token)
            self._events.append(event)
            tokens.append(FirstToken(choice, token.token_id, event.finish_reason is not None))
        self._run_choices(task, sequence, tokens)
        self._finish_if_over(task)

    def _emit_one(self, task: Task, chunk: PlannedChunk, token: Sampled) -> None:
        """What nearly every row of nearly every step comes to."""
        sequence, choices = chunk.sequence, chunk.sample_choices
        event = self._token_event(sequence, choices[0], token)
        self._events.append(event)
        if event.finish_reason is None:
            sequence.choices = choices
            sequence.append(token.token_id)
        else:
            self._end(task, sequence)
            self._finish_if_over(task)

    def _token_event(self, sequence: Sequence, choice: int, token: Sampled) -> TokenEvent:
        position = sequence.num_output_tokens
        reason = finish_reason(
            sequence.sampling,
            token.token_id,
            position + 1,
            self._eos_token_ids,
            sequence.grammar is not None and sequence.completes(token.token_id),
        )
        return TokenEvent(
            sequence.transfer_id, choice, position, token.token_id, token.logprobs, reason
        )

    def _end(self, task: Task, sequence: Sequence) -> None:
        """One sequence is over. Its blocks go at once; a pull under way is dropped."""
        if sequence.status is SequenceStatus.IMPORTING:
            self._receiver.abort(sequence.transfer_id)
        self._scheduler.remove(sequence)
        task.sequences.remove(sequence)

    def _finish_if_over(self, task: Task) -> None:
        if not task.sequences:
            self._forget(task)
            self._events.append(AttemptDone(task.attempt.transfer_id, task.timings()))

    def _fail(
        self,
        transfer_id: str,
        code: str,
        message: str,
        *,
        retryable: bool = False,
        reason: str = "",
    ) -> None:
        task = self._tasks[transfer_id]
        for sequence in list(task.sequences):
            self._end(task, sequence)
        self._forget(task)
        self._events.append(failed(transfer_id, code, message, retryable=retryable, reason=reason))

    def _forget(self, task: Task) -> None:
        del self._tasks[task.attempt.transfer_id]
        self._leaving.discard(task.attempt.transfer_id)
        self._deadlines.discard(task.attempt.transfer_id)
