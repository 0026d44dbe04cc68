"""Calls as Hermes and Qwen write them: a JSON object between `<tool_call>` and `</tool_call>`."""

from __future__ import annotations

from router.tools.call_event import Piece, joined
from router.tools.call_scanner import CallScanner
from router.tools.content import Content
from router.tools.marker_finder import MarkerFinder

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesParser:
    """Text until a marker, then one object; what is no call between markers is content."""

    def __init__(self) -> None:
        self._finder = MarkerFinder((OPEN, CLOSE))
        self._content = Content()
        self._scanner: CallScanner | None = None

    def push(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        while text:
            text = (
                self._in_text(text, pieces)
                if self._scanner is None
                else self._in_call(text, pieces)
            )
        return joined(pieces)

    def finish(self, *, cut: bool) -> list[Piece]:
        pieces: list[Piece] = []
        scanner, self._scanner = self._scanner, None
        rest = self._finder.flush()
        if scanner is not None and not scanner.started:
            rest = scanner.raw
        if not cut:
            pieces.append(self._content.push(rest))
        pieces.append(self._content.flush())
        return joined(pieces)

    def _in_text(self, text: str, pieces: list[Piece]) -> str:
        before, marker, rest = self._finder.push(text)
        pieces.append(self._content.push(before))
        if marker == OPEN:
            self._scanner = CallScanner()
        elif marker == CLOSE:
            self._content.end_call()
        return rest

    def _in_call(self, text: str, pieces: list[Piece]) -> str:
        """Takes characters until the object is over; what is left."""
        scanner = self._scanner
        assert scanner is not None
        rest = scanner.read(text, self._content.call)
        pieces += scanner.take()
        if rest is None:
            return ""
        self._scanner = None
        return rest
