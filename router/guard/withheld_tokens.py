"""Tokens of one choice that are withheld with the text that they spell."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from core.request import TokenLogprobs
from router.life.choice import Delta


@dataclass(frozen=True, slots=True)
class SpelledToken:
    """Characters `start` to `end` of the choice's text are, at least in part, this token's."""

    start: int
    end: int
    token_id: int
    logprobs: TokenLogprobs | None


class WithheldTokens:
    """Tokens that have come and not gone on yet, in order."""

    def __init__(self) -> None:
        self._queue: deque[SpelledToken] = deque()

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, delta: Delta) -> None:
        logprobs: Sequence[TokenLogprobs | None] = delta.logprobs or (None,) * len(delta.token_ids)
        tokens = zip(delta.spans, delta.token_ids, logprobs, strict=True)
        self._queue.extend(SpelledToken(*span, token_id, its) for span, token_id, its in tokens)

    def lie_before(self, place: int) -> bool:
        return not self._queue or self._queue[-1].end <= place

    def split(self, place: int) -> int:
        """The last place up to `place` at which no withheld token is cut in two."""
        for token in self._queue:
            if token.end > place:
                return min(place, token.start)
        return place

    def take(self, end: int | None) -> list[SpelledToken]:
        """Tokens that lie before `end`, or all."""
        taken = []
        while self._queue and (end is None or self._queue[0].end <= end):
            taken.append(self._queue.popleft())
        return taken

    def drop(self, end: int) -> int:
        """Forgets tokens that begin before `end`; where the next one's text begins."""
        while self._queue and self._queue[0].start < end:
            end = max(end, self._queue.popleft().end)
        return end
