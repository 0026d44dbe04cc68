"""Calls as Llama 3.1 and later write them: `{"name": ..., "parameters": {...}}`, several with `;`.

An answer is calls from its beginning, or behind `<|python_tag|>`; an object that names no function
on offer is content.
"""

from __future__ import annotations

from collections.abc import Collection

from router.tools.call_event import Piece, joined
from router.tools.call_scanner import CallScanner
from router.tools.content import Content
from router.tools.json_value import SPACE
from router.tools.marker_finder import MarkerFinder

TAG = "<|python_tag|>"


class Llama3Parser:
    """At the beginning and behind a call a brace begins a call; in text only the tag does."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._finder = MarkerFinder((TAG,))
        self._content = Content()
        self._scanner: CallScanner | None = None
        self._may_begin = True
        self._separator = ""  # seen since the last call: dropped before the next one

    def push(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        while text:
            if self._scanner is not None:
                text = self._in_call(text, pieces)
            elif self._may_begin:
                text = self._at_beginning(text)
            else:
                text = self._in_text(text, pieces)
        return joined(pieces)

    def finish(self, *, cut: bool) -> list[Piece]:
        pieces: list[Piece] = []
        scanner, self._scanner = self._scanner, None
        rest = self._separator.rstrip("; \t\r\n") + self._finder.flush()
        if scanner is not None and not scanner.started:
            rest = scanner.raw
        if not cut:
            pieces.append(self._content.push(rest))
        pieces.append(self._content.flush())
        return joined(pieces)

    def _at_beginning(self, text: str) -> str:
        """Space, then a call, the tag, or anything else, which is text."""
        seen = self._separator + text
        self._separator = ""
        body = seen.lstrip(SPACE + ";" if self._content.called else SPACE)
        if body.startswith("{"):
            self._scanner = CallScanner(self._names)
            self._content.push(seen[: len(seen) - len(body)])
            return body
        if body.startswith(TAG):
            return body[len(TAG) :]
        if TAG.startswith(body):
            self._separator = seen
            return ""
        self._may_begin = False
        return seen

    def _in_text(self, text: str, pieces: list[Piece]) -> str:
        before, marker, rest = self._finder.push(text)
        pieces.append(self._content.push(before))
        self._may_begin = bool(marker)
        return rest

    def _in_call(self, text: str, pieces: list[Piece]) -> str:
        scanner = self._scanner
        assert scanner is not None
        rest = scanner.read(text, self._content.call)
        pieces += scanner.take()
        if rest is None:
            return ""
        self._scanner = None
        self._may_begin = scanner.done
        return rest
