"""Finds markers in text that comes in pieces, never letting a part of one through."""

from __future__ import annotations

from collections.abc import Sequence


class MarkerFinder:
    """Cuts text at the first marker. What may be the beginning of one is held back."""

    def __init__(self, markers: Sequence[str]) -> None:
        self._markers = tuple(markers)
        self._held = ""

    def push(self, text: str) -> tuple[str, str, str]:
        """Text that is before any marker, the first marker found or "", and what follows it."""
        text = self._held + text
        self._held = ""
        found = [(text.find(marker), marker) for marker in self._markers]
        hits = [(at, marker) for at, marker in found if at >= 0]
        if hits:
            at, marker = min(hits)
            return text[:at], marker, text[at + len(marker) :]
        cut = len(text) - max((_overlap(text, m) for m in self._markers), default=0)
        self._held = text[cut:]
        return text[:cut], "", ""

    def flush(self) -> str:
        """What was held back."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, marker: str) -> int:
    """Length of the longest end of `text` that begins `marker`."""
    longest = min(len(text), len(marker) - 1)
    return next((n for n in range(longest, 0, -1) if marker.startswith(text[-n:])), 0)
