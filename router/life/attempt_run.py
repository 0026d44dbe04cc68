"""One attempt on one pair: sends its legs, knows what they owe, ends both.

begin      Prefill to P                    (no P: Decode without a handoff to D)
started    P's handoff goes to D           (one token asked for: P alone)
tokens     P: the first token of every choice; D: all others
move       D drains: it lets go of each choice, which leaves this attempt for another
follow     Decode with a handoff to D, where the KV lies on the worker that was D before
redirect   D drained before it took the handoff: Decode to another D
close      cancel what may still run, then hear no more of it
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import replace

from core.handoff import Handoff, Started
from core.request import Attempt, Phase
from router.fleet.assignments import Assignment
from router.fleet.leg_event import Sink
from router.fleet.sessions import WorkerSession
from router.fleet.worker_pair import WorkerPair
from router.life.attempt_timeline import AttemptTimeline
from router.life.choice import Choice, ChoiceState


class LegState(enum.Enum):
    """One leg: not sent, sent, or over on its worker."""

    UNSENT = "unsent"
    SENT = "sent"
    OVER = "over"


class AttemptRun:
    """Effects go to the pair's sessions; nothing here waits."""

    def __init__(
        self,
        attempt: Attempt,
        pair: WorkerPair,
        choices: Sequence[Choice],
        follows: Handoff | None = None,
    ) -> None:
        """`follows` is the receipt of KV that lies ready on `pair.prefill`, whatever its role."""
        self.attempt = attempt
        self.pair = pair
        self.choices = tuple(choices)
        self.follows_kv = follows is not None
        self.offered: dict[int, Handoff] = {}
        """KV of choices that D let go of, until all their tokens are here."""
        self._handoff = follows
        self._legs = {phase: LegState.UNSENT for phase in Phase}
        self._cancelled: set[int] = set()
        """Choices that D was told to drop."""
        self._decode_progressed = False
        """D has emitted something: so the pull has closed, and P holds nothing for us."""
        self._decode_drains = False
        self._asked_to_move = False

    @property
    def unfinished(self) -> list[Choice]:
        return [c for c in self.choices if not c.ended]

    def choice(self, index: int) -> Choice | None:
        """The choice of this index, if it is the attempt's."""
        for choice in self.choices:
            if choice.index == index:
                return choice
        return None

    @property
    def wants_to_move(self) -> bool:
        """D drains and was not asked yet to let go."""
        sent = self._legs[Phase.DECODE] is LegState.SENT
        return self._decode_drains and sent and not self._asked_to_move

    def timeline(self, number: int, now: float) -> AttemptTimeline:
        """What is to be told of it, which is the request's `number`th."""
        prefill, decode = self.pair.prefill, self.pair.decode
        return AttemptTimeline(
            number=number,
            transfer_id=self.attempt.transfer_id,
            choices=self.attempt.choices,
            num_tokens=len(self.attempt.token_ids),
            prefill_worker=prefill.member.worker_id if prefill else "",
            decode_worker=decode.member.worker_id if decode else "",
            sent=now,
            follows_kv=self.follows_kv,
        )

    def begin(self, sink: Sink, *, block_size: int) -> None:
        """Reserves both workers and sends the first leg."""
        for choice in self.choices:
            choice.begin_attempt()
        self._reserve(block_size)
        if self.pair.prefill is not None:
            self._legs[Phase.PREFILL] = LegState.SENT
            self.pair.prefill.prefill(self.attempt, sink)
        else:
            self._send_decode(sink)

    def follow(self, sink: Sink, *, block_size: int) -> None:
        """Instead of `begin` where the KV lies ready: the choices go on as they are."""
        assert self.follows_kv
        self._legs[Phase.PREFILL] = LegState.OVER
        self._reserve_decode(0, block_size)
        self._send_decode(sink)

    def started(self, event: Started, sink: Sink) -> None:
        """P's receipt goes on to D. A repeated one changes nothing."""
        if event.handoff is not None and self._legs[Phase.DECODE] is LegState.UNSENT:
            self._handoff = event.handoff
            self._send_decode(sink)

    def redirect(self, session: WorkerSession, sink: Sink, *, block_size: int) -> None:
        """D refused what `can_redirect`; this one is to pull instead."""
        assert self.can_redirect and self.pair.decode is not None
        self.pair.decode.release(self.attempt.transfer_id)
        self.pair = replace(self.pair, decode=session)
        self._decode_drains = self._asked_to_move = False
        self._reserve_decode(0, block_size)
        self._send_decode(sink)

    @property
    def can_redirect(self) -> bool:
        """Whether there is KV that D has not begun to pull."""
        return self._handoff is not None and not self._decode_progressed

    def drains(self, phase: Phase) -> None:
        """The leg's worker is about to leave. A prefill is short, and ends where it is."""
        self._decode_drains |= phase is Phase.DECODE

    def ask_to_move(self) -> None:
        if self.pair.decode is not None:
            self._asked_to_move = True
            self.pair.decode.move(self.attempt.transfer_id)

    def hand_over(self, choice: Choice) -> None:
        """The choice, and what was kept of it, are no longer this attempt's business."""
        self.offered.pop(choice.index, None)
        self.choices = tuple(c for c in self.choices if c is not choice)

    def progressed(self, phase: Phase) -> bool:
        """A token of this leg came in. Whether it is the first one of D."""
        first = phase is Phase.DECODE and not self._decode_progressed
        self._decode_progressed |= first
        return first

    def leg_over(self, phase: Phase) -> None:
        """The leg's worker holds nothing more for it."""
        self._legs[phase] = LegState.OVER

    def needs(self, phase: Phase) -> bool:
        """Whether the attempt can't end well without (more of) this leg."""
        if phase is Phase.PREFILL:
            return any(c.state is ChoiceState.PREFILL for c in self.choices)
        return bool(self.unfinished)

    def broken_promise(self) -> Phase | None:
        """The leg that said it was done and yet owes tokens, if any."""
        prefill_over = self._legs[Phase.PREFILL] is LegState.OVER
        if prefill_over and self.needs(Phase.PREFILL):
            return Phase.PREFILL
        if not self.unfinished:
            return None
        if self._legs[Phase.DECODE] is LegState.OVER:
            # D may have finished before P's first token reached us; then a choice has a gap.
            waits_for_prefill = self.pair.prefill is not None and not prefill_over
            return None if waits_for_prefill else Phase.DECODE
        if prefill_over and self._legs[Phase.DECODE] is LegState.UNSENT:
            return Phase.PREFILL
        return None

    def cancel_choice(self, choice: Choice) -> None:
        """A stop string ended this choice while others of the attempt go on."""
        if self._legs[Phase.DECODE] is LegState.SENT and self.pair.decode is not None:
            self._cancelled.add(choice.index)
            self.pair.decode.cancel(self.attempt.transfer_id, (choice.index,))

    def close(self) -> None:
        """Ends both legs, and gives up what nobody followed. Idempotent."""
        if self.pair.decode is not None:
            for handoff in self.offered.values():
                self.pair.decode.cancel(handoff.transfer_id)
            self.offered.clear()
        for phase in Phase:
            session = self.pair.session(phase)
            if session is None:
                continue
            if self._may_still_run(phase):
                session.cancel(self.attempt.transfer_id)
                self._legs[phase] = LegState.OVER
            session.release(self.attempt.transfer_id)

    def _may_still_run(self, phase: Phase) -> bool:
        """Whether the worker may hold something, sequence or lease, that only a cancel ends soon.

        P is asked even when it is done: its lease lives until D's pull closes.
        """
        if self._legs[phase] is LegState.UNSENT:
            return False
        settled = all(c.finished_by_worker or c.index in self._cancelled for c in self.choices)
        if phase is Phase.DECODE:
            ended_well = settled and self._decode_progressed
            return self._legs[phase] is LegState.SENT and not ended_well
        decode_unsent = self._legs[Phase.DECODE] is LegState.UNSENT
        return not self._decode_progressed and not (settled and decode_unsent)

    def _send_decode(self, sink: Sink) -> None:
        if self.pair.decode is None:
            return
        self._legs[Phase.DECODE] = LegState.SENT
        self.pair.decode.decode(self.attempt, self._handoff, sink)

    def _reserve(self, block_size: int) -> None:
        num_tokens = len(self.attempt.token_ids)
        if self.pair.prefill is not None:
            assignment = Assignment(1, num_tokens, -(-num_tokens // block_size))
            self.pair.prefill.reserve(self.attempt.transfer_id, assignment)
        self._reserve_decode(0 if self.pair.prefill else num_tokens, block_size)

    def _reserve_decode(self, num_local_tokens: int, block_size: int) -> None:
        if self.pair.decode is not None:
            num_blocks = -(-len(self.attempt.token_ids) // block_size)
            assignment = Assignment(len(self.choices), num_local_tokens, num_blocks)
            self.pair.decode.reserve(self.attempt.transfer_id, assignment)
