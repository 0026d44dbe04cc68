"""One choice of a request: its tokens so far, its text, and how it ended.

    QUEUED --attempt sent--> PREFILL --first token of the attempt--> DECODE --last token--> FINISHED
       ^                        |                                      |
       +------- the attempt failed: again, from prompt + emitted ------+        any --> CANCELLED

A choice whose KV moves to another decode worker stays in DECODE. Only `move` changes the state.
"""

from __future__ import annotations

import enum
from collections.abc import Container
from dataclasses import dataclass

from core.request import FinishReason, TokenEvent, TokenLogprobs
from text.detokenizer import Detokenizer
from text.stop_strings import StopMatcher


class ChoiceState(enum.Enum):
    """Where a choice is in its life."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"
    CANCELLED = "cancelled"


_ENDED = (ChoiceState.FINISHED, ChoiceState.CANCELLED)
_NEXT = {
    ChoiceState.QUEUED: (ChoiceState.PREFILL, ChoiceState.CANCELLED),
    ChoiceState.PREFILL: (ChoiceState.DECODE, ChoiceState.QUEUED, ChoiceState.CANCELLED),
    ChoiceState.DECODE: (ChoiceState.QUEUED, *_ENDED),
    ChoiceState.FINISHED: (),
    ChoiceState.CANCELLED: (),
}


@dataclass(slots=True)
class Delta:
    """What a choice gained. The last one of a choice has a `finish_reason`; nothing follows it.

    Nobody changes one; it is not frozen, since that takes three times as long to make.
    """

    choice: int
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    """One for each of `token_ids` if the client asked for them, else empty."""
    finish_reason: FinishReason | None = None
    spans: tuple[tuple[int, int], ...] = ()
    """Where in the choice's text each token begins and ends. A token that ends inside a character
    ends after it; text that a stop string cuts off, or may cut off, counts."""
    unspelled: bool = False
    """The text stands in place of tokens that the client doesn't get."""


class Choice:
    """Accepts tokens in order of position, each once; turns them into text; finds stop strings."""

    def __init__(
        self,
        index: int,
        detokenizer: Detokenizer,
        stop_matcher: StopMatcher,
        min_tokens: int,
        unsaid: Container[int] = (),
    ) -> None:
        """`unsaid` are tokens that are no text where they end the choice."""
        self.index = index
        self.state = ChoiceState.QUEUED
        self.token_ids: list[int] = []
        self.num_attempts = 0
        self.num_failures = 0
        """Attempts that failed; one that its worker let go of did not."""
        self.finished_by_worker = False
        """The worker ended it by itself, so that there is nothing to cancel there."""
        self.finish_reason: FinishReason | None = None
        self._detokenizer = detokenizer
        self._stop_matcher = stop_matcher
        self._min_tokens = min_tokens
        self._unsaid = unsaid
        self._ahead: dict[int, TokenEvent] = {}
        self._num_spelled = 0
        """Characters of all tokens so far."""

    @property
    def ended(self) -> bool:
        return self.state in _ENDED

    @property
    def has_gap(self) -> bool:
        """Later tokens are here, but the next one is not."""
        return bool(self._ahead)

    def move(self, to: ChoiceState) -> None:
        """The one place where the state changes; an illegal step is our own fault."""
        assert to in _NEXT[self.state], f"choice {self.index}: {self.state} -> {to}"
        self.state = to

    def begin_attempt(self) -> None:
        self.num_attempts += 1
        self.move(ChoiceState.PREFILL)

    def requeue(self) -> None:
        """The attempt is over. What it sent out of order is forgotten: it may stay incomplete."""
        self._ahead.clear()
        self.move(ChoiceState.QUEUED)

    def fail(self) -> None:
        """`requeue` after a failure: a choice can afford only so many of them."""
        self.num_failures += 1
        self.requeue()

    def cancel(self) -> None:
        if not self.ended:
            self.move(ChoiceState.CANCELLED)

    def accept(self, event: TokenEvent) -> Delta | None:
        """What the client gains by this token: None for a repeated one, or one that came early.

        P and D have streams of their own, so D's second token may overtake P's first.
        """
        missing = len(self.token_ids)
        if event.position < missing or self.ended:
            return None
        if event.position == missing and not self._ahead:
            return self._take(event)
        self._ahead[event.position] = event
        gained: list[Delta] = []
        while not self.ended and (ready := self._ahead.pop(len(self.token_ids), None)):
            gained.append(self._take(ready))
        return joined(gained)

    def _take(self, event: TokenEvent) -> Delta:
        if self.state is ChoiceState.PREFILL:
            self.move(ChoiceState.DECODE)
        self.token_ids.append(event.token_id)
        begin = self._num_spelled
        text, stopped = self._text_of(event)
        span = begin, self._num_spelled + self._detokenizer.in_character
        reason = FinishReason.STOP if stopped else event.finish_reason
        self.finished_by_worker = event.finish_reason is not None
        if reason is not None:
            self.finish_reason = reason
            self._ahead.clear()
            self.move(ChoiceState.FINISHED)
        logprobs = () if event.logprobs is None else (event.logprobs,)
        return Delta(self.index, text, (event.token_id,), logprobs, reason, (span,))

    def _text_of(self, event: TokenEvent) -> tuple[str, bool]:
        """New text, and whether a stop string ended it; at the end also what was held back."""
        last = event.finish_reason is not None
        if last:
            unsaid = event.finish_reason is FinishReason.STOP and event.token_id in self._unsaid
            text = self._detokenizer.push([] if unsaid else [event.token_id])
            text += self._detokenizer.flush()
        else:
            text = self._detokenizer.push([event.token_id])
        self._num_spelled += len(text)
        # As in vLLM, the first `min_tokens` tokens cannot stop a choice.
        if len(self.token_ids) <= self._min_tokens:
            return text, False
        emit, stopped = self._stop_matcher.push(text)
        if last and not stopped:
            emit += self._stop_matcher.flush()
        return emit, stopped


def joined(deltas: list[Delta]) -> Delta | None:
    """Consecutive deltas of one choice as one."""
    if len(deltas) < 2:
        return deltas[0] if deltas else None
    return Delta(
        choice=deltas[0].choice,
        text="".join(d.text for d in deltas),
        token_ids=tuple(t for d in deltas for t in d.token_ids),
        logprobs=tuple(p for d in deltas for p in d.logprobs),
        finish_reason=deltas[-1].finish_reason,
        spans=tuple(s for d in deltas for s in d.spans),
    )
