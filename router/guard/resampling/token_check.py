"""One suspicious token, from what is drawn with the policy's prompt to what stands in its place.

    first draw   close   > passed: the token stands
                 far     > the draw stands, unless it begins a term: then the next draw
    later draws          > the first that begins no term, or the last one there may be
    failure              > what stands by then, or nothing (block)

Pure but for what it remembers.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import NamedTuple

from core.request import FinishReason, TokenLogprobs
from router.guard.resampling.divergence import divergence_at_least
from router.guard.resampling.rules import OnFailure, ResampleRules
from router.life.choice import Delta


class CheckOutcome(enum.StrEnum):
    """What came of a suspicious token: a label of metrics."""

    PASSED = "passed"
    RESAMPLED = "resampled"
    """Another token stands in its place."""
    SAME = "same"
    """It was far, but the same token was drawn."""
    LATE = "late"
    FAILED = "failed"
    EXHAUSTED = "exhausted"
    """The choice has had all its checks."""


class Token(NamedTuple):
    """A token of a choice, and its own distribution's likeliest."""

    token_id: int
    logprobs: TokenLogprobs
    finish_reason: FinishReason | None


class TokenCheck:
    """Give it draws until it has an outcome."""

    def __init__(self, rules: ResampleRules, token: Token) -> None:
        self.stands: Token | None = token
        """None: the choice ends before it."""
        self.outcome: CheckOutcome | None = None
        self.divergence: float | None = None
        """Nats, at least; None while nothing was drawn."""
        self.num_resamples = 0
        self._rules = rules
        self._token = token

    @property
    def next_number(self) -> int:
        """Of the draw that is needed next, from 1 on."""
        return self.num_resamples + 1

    def drawn(self, other: Token, *, suspicious: bool) -> None:
        """A draw is here; `suspicious`: in this place it begins, or goes on with, a term."""
        assert self.outcome is None
        if self.divergence is None:
            found = divergence_at_least(other.logprobs.top, self._token.logprobs.top)
            self.divergence = found
            if found <= self._rules.threshold:
                self.outcome = CheckOutcome.PASSED
                return
        self.num_resamples += 1
        is_same = other.token_id == self._token.token_id
        self.stands = self._token if is_same else other
        if not suspicious or self.num_resamples >= self._rules.max_resamples:
            self.outcome = CheckOutcome.SAME if is_same else CheckOutcome.RESAMPLED

    def failed(self, outcome: CheckOutcome) -> None:
        """No (further) draw will come."""
        self.outcome = outcome
        if self._rules.on_check_failure is OnFailure.BLOCK:
            self.stands = None


def tokens_of(delta: Delta) -> Iterator[Token]:
    """The tokens of a life's delta, which has log-probabilities."""
    last = len(delta.token_ids) - 1
    pairs = zip(delta.token_ids, delta.logprobs, strict=True)
    for index, (token_id, logprobs) in enumerate(pairs):
        yield Token(token_id, logprobs, delta.finish_reason if index == last else None)
