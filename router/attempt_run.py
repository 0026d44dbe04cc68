"""One attempt on one pair: sends its legs, knows what they owe, ends both.

begin      Prefill to P                    (no P: Decode without a handoff to D)
started    P's handoff goes to D           (one token asked for: P alone)
tokens     P: the first token of every choice; D: all others
close      cancel what may still run, then hear no more of it
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

from core.handoff import Started
from core.request import Attempt, Phase
from router.assignments import Assignment
from router.choice import Choice, ChoiceState
from router.leg_event import Sink
from router.worker_pair import WorkerPair


class LegState(enum.Enum):
    """One leg: not sent, sent, or over on its worker."""

    UNSENT = "unsent"
    SENT = "sent"
    OVER = "over"


class AttemptRun:
    """Effects go to the pair's sessions; nothing here waits."""

    def __init__(self, attempt: Attempt, pair: WorkerPair, choices: Sequence[Choice]) -> None:
        self.attempt = attempt
        self.pair = pair
        self.choices = tuple(choices)
        self._legs = {phase: LegState.UNSENT for phase in Phase}
        self._cancelled: set[int] = set()
        """Choices that D was told to drop."""
        self._decode_progressed = False
        """D has emitted something: so the pull has closed, and P holds nothing for us."""

    @property
    def unfinished(self) -> list[Choice]:
        return [c for c in self.choices if not c.ended]

    def begin(self, sink: Sink, *, block_size: int) -> None:
        """Reserves both workers and sends the first leg."""
        for choice in self.choices:
            choice.begin_attempt()
        self._reserve(block_size)
        if self.pair.prefill is not None:
            self._legs[Phase.PREFILL] = LegState.SENT
            self.pair.prefill.prefill(self.attempt, sink)
        else:
            self._send_decode(None, sink)

    def started(self, event: Started, sink: Sink) -> None:
        """P's receipt goes on to D. A repeated one changes nothing."""
        if event.handoff is not None and self._legs[Phase.DECODE] is LegState.UNSENT:
            self._send_decode(event, sink)

    def progressed(self, phase: Phase) -> None:
        """A token of this leg came in."""
        self._decode_progressed |= phase is Phase.DECODE

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
        """Ends both legs. Idempotent."""
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

    def _send_decode(self, started: Started | None, sink: Sink) -> None:
        if self.pair.decode is None:
            return
        self._legs[Phase.DECODE] = LegState.SENT
        handoff = started.handoff if started else None
        self.pair.decode.decode(self.attempt, handoff, sink)

    def _reserve(self, block_size: int) -> None:
        num_tokens = len(self.attempt.token_ids)
        num_blocks = -(-num_tokens // block_size)
        if self.pair.prefill is not None:
            assignment = Assignment(1, num_tokens, num_blocks)
            self.pair.prefill.reserve(self.attempt.transfer_id, assignment)
        if self.pair.decode is not None:
            local_tokens = 0 if self.pair.prefill else num_tokens
            assignment = Assignment(len(self.choices), local_tokens, num_blocks)
            self.pair.decode.reserve(self.attempt.transfer_id, assignment)
