"""Finds stop strings in text that arrives in pieces.

text so far   ....emitted....|held        held: a proper beginning of some stop string
next piece                   |held piece  -> a stop is complete, or more becomes certain
"""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Passes text through until a stop string is complete in it, however the text is cut.

    The stop that is complete first wins; of several complete at the same character, the longest.
    So the result depends on the text alone, and no part of the winner is ever emitted (unless
    `include_stop`, then all of it).
    """

    def __init__(self, stops: Sequence[str], include_stop: bool = False) -> None:
        assert all(stops), "an empty stop string would match everywhere"
        self._stops = tuple(stops)
        self._include_stop = include_stop
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text."""

    def push(self, text: str) -> tuple[str, bool]:
        """Text to emit now, and whether a stop ended it; nothing is emitted after a stop."""
        if not self._stops:
            return text, False
        if self.matched is not None:
            return "", True
        text = self._held + text
        match = self._first_match(text)
        if match is not None:
            start, self.matched = match
            self._held = ""
            end = start + len(self.matched) if self._include_stop else start
            return text[:end], True
        cut = len(text) - self._num_held(text)
        self._held = text[cut:]
        return text[:cut], False

    def flush(self) -> str:
        """What was held back, when the text ends without a stop."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        """Start and stop string of the match that ends first."""
        found = [(text.find(stop), stop) for stop in self._stops]
        matches = [(start + len(stop), start, stop) for start, stop in found if start >= 0]
        if not matches:
            return None
        _, start, stop = min(matches)
        return start, stop

    def _num_held(self, text: str) -> int:
        """Length of the longest end of `text` that may be the beginning of a stop string."""
        return max((_overlap(text, stop) for stop in self._stops), default=0)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop` without completing it."""
    start = max(0, len(text) - len(stop) + 1)
    while (start := text.find(stop[0], start)) >= 0:
        if stop.startswith(text[start:]):
            return len(text) - start
        start += 1
    return 0
