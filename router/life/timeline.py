"""When what happened to one request, as its client could see it.

All that is told of it comes from here: metrics, timings in answers, spans, logs, /debug/requests.

    received    .    tokenised                 started     first token    second ... finished
    |  queue a  | tokenise  |  queue b: a worker  |  prefill  |  handoff gap  |
    |<-------------------------- TTFT ----------------------->|

Queue is a + b. So queue + tokenise + prefill is the time to the first token, exactly; moving the KV
and the first decode step lie after it, in the gap.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from core.request import AttemptDone, Phase
from router.life.attempt_timeline import AttemptTimeline
from router.life.check_timeline import CheckTimeline

NOTED_TOKENS = 2
"""Of each choice, of which moments are kept: the first ones."""


@dataclass(frozen=True, slots=True)
class RequestTimings:
    """Durations in seconds; None for what a request never reached."""

    queue_s: float | None
    tokenize_s: float | None
    prefill_s: float | None
    ttft_s: float | None
    handoff_gap_s: float | None
    total_s: float | None


@dataclass(slots=True)
class RequestTimeline:
    """Moments of one request on the router's clock. Each is set once; a retry changes none."""

    received: float
    tokenize_began: float | None = None
    tokenized: float | None = None
    sent: float | None = None
    started: float | None = None
    """The worker's first chunk is scheduled: what came before was waiting."""
    first_token: float | None = None
    second_token: float | None = None
    finished: float | None = None
    on_first_token: Callable[[], None] | None = None
    """Told when it is here, whether or not the client hears of it yet."""
    attempts: dict[str, AttemptTimeline] = field(default_factory=dict)
    """By transfer id, in order."""
    checks: list[CheckTimeline] = field(default_factory=list)
    """Of suspicious tokens, as they ended."""

    def token(self, position: int, now: float) -> None:
        """Notes a token that is about to leave for the client."""
        if position == 0 and self.first_token is None:
            self.first_token = now
            told, self.on_first_token = self.on_first_token, None
            if told is not None:
                told()
        elif position == 1 and self.second_token is None:
            self.second_token = now

    def prefill_sent(self, now: float) -> None:
        self.sent = now if self.sent is None else self.sent

    def prefill_started(self, now: float) -> None:
        """Ignored after the first token: a retry starts again, the client has long been served."""
        if self.first_token is None:
            self.started = now

    def attempt_began(self, attempt: AttemptTimeline) -> None:
        self.attempts[attempt.transfer_id] = attempt

    def attempt_ended(self, transfer_id: str, now: float) -> None:
        attempt = self.attempts[transfer_id]
        attempt.ended = now if attempt.ended is None else attempt.ended

    def leg_done(self, phase: Phase, done: AttemptDone) -> None:
        """A leg ended well; that may come after the attempt's last token."""
        attempt = self.attempts.get(done.transfer_id)
        if attempt is not None:
            attempt.legs[phase] = done.timings

    def timings(self) -> RequestTimings:
        tokenize_s = _between(self.tokenize_began, self.tokenized)
        ttft_s = _between(self.received, self.first_token)
        prefill_s = _between(self.started, self.first_token)
        queue_s = None
        if ttft_s is not None and tokenize_s is not None and prefill_s is not None:
            queue_s = max(0.0, ttft_s - tokenize_s - prefill_s)
        return RequestTimings(
            queue_s=queue_s,
            tokenize_s=tokenize_s,
            prefill_s=prefill_s,
            ttft_s=ttft_s,
            handoff_gap_s=_between(self.first_token, self.second_token),
            total_s=_between(self.received, self.finished),
        )


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start
