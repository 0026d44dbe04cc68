"""Calls as Mistral's models write them, behind `[TOOL_CALLS]`.

[TOOL_CALLS][{"name": "f", "arguments": {...}}, ...]     a list
[TOOL_CALLS]f[ARGS]{...}[TOOL_CALLS]g[ARGS]{...}         newer: a marker for each call
"""

from __future__ import annotations

from collections.abc import Callable

from router.tools.call_event import CallArguments, CallStart, Piece, joined
from router.tools.call_scanner import CallScanner
from router.tools.content import Content
from router.tools.json_value import SPACE, ValueScanner
from router.tools.marker_finder import MarkerFinder

MARKER = "[TOOL_CALLS]"
_MAX_HEAD = 256
"""Characters of a name with what may follow it; what is longer names no function."""


class MistralParser:
    """Text until the marker, then a list or one call; what is no call is content."""

    def __init__(self) -> None:
        self._finder = MarkerFinder((MARKER,))
        self._content = Content()
        self._scanner = CallScanner()
        self._value = ValueScanner("{")
        self._head = ""
        self._called = False  # in the list under way
        self._step: Callable[[str, list[Piece]], str] = self._in_text

    def push(self, text: str) -> list[Piece]:
        pieces: list[Piece] = []
        while text:
            text = self._step(text, pieces)
        return joined(pieces)

    def finish(self, *, cut: bool) -> list[Piece]:
        pieces: list[Piece] = []
        rest = self._finder.flush() + self._head
        if self._step == self._in_call and not self._scanner.started:
            rest += self._scanner.raw
        if not cut and not (self._called and not rest.strip("[, \n")):
            pieces.append(self._content.push(rest))
        pieces.append(self._content.flush())
        return joined(pieces)

    def _in_text(self, text: str, pieces: list[Piece]) -> str:
        before, marker, rest = self._finder.push(text)
        pieces.append(self._content.push(before))
        if marker:
            self._head, self._called, self._step = "", False, self._at_head
        return rest

    def _at_head(self, text: str, pieces: list[Piece]) -> str:
        """A bracket begins a list, a brace the arguments of what was named before it."""
        for i, character in enumerate(text):
            if not self._head.strip() and character == "[":
                self._head, self._step = "[", self._in_list
                return text[i + 1 :]
            if character == "{":
                return self._begin_arguments(text[i:], pieces)
            self._head += character
            if len(self._head) > _MAX_HEAD:
                return self._give_up(text[i + 1 :])
        return ""

    def _begin_arguments(self, text: str, pieces: list[Piece]) -> str:
        name = self._head.partition("[")[0].strip()
        if not name:
            return self._give_up(text)
        self._head = ""
        self._content.call()
        pieces += [CallStart(name), CallArguments("{")]
        self._value, self._step = ValueScanner("{"), self._in_arguments
        return text[1:]

    def _in_arguments(self, text: str, pieces: list[Piece]) -> str:
        for i, character in enumerate(text):
            if self._value.ends_with(character):
                pieces.append(CallArguments(text[: i + 1]))
                self._step = self._in_text
                return text[i + 1 :]
        pieces.append(CallArguments(text))
        return ""

    def _in_list(self, text: str, pieces: list[Piece]) -> str:
        """Between two objects of a list."""
        for i, character in enumerate(text):
            if character == "{":
                self._scanner, self._step = CallScanner(), self._in_call
                return text[i:]
            if character == "]" and self._called:
                self._head, self._step = "", self._in_text
                return text[i + 1 :]
            if character not in SPACE + ",":
                return self._give_up(text[i:])
            self._head += character
        return ""

    def _in_call(self, text: str, pieces: list[Piece]) -> str:
        scanner = self._scanner
        rest = scanner.read(text, self._begin_call)
        pieces += scanner.take()
        if rest is None:
            return ""
        if not scanner.done:
            return self._give_up(rest)
        self._step = self._in_list
        return rest

    def _begin_call(self) -> None:
        self._content.call()
        self._head, self._called = "", True

    def _give_up(self, rest: str) -> str:
        """It was no call: all since the marker is content."""
        text, self._head, self._step = self._head + rest, "", self._in_text
        return text
