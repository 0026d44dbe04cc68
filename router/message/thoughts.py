"""Splits thoughts, `<think>...</think>`, from what follows them, in text that comes in pieces."""

from __future__ import annotations

import enum

from router.dialect import END_THINK, THINK
from router.tools.marker_finder import MarkerFinder


class Thinking(enum.Enum):
    """Where an answer is."""

    UNDECIDED = "undecided"
    """It may begin with thoughts."""
    OPEN = "open"
    OVER = "over"


def thinking_after(prompt_tail: str, continued: str | None = None) -> Thinking:
    """How an answer begins behind a prompt that ends so; `continued` is the text of the message
    that the answer goes on with, if it begins none of its own."""
    if continued is not None:
        is_open = continued.rfind(THINK) > continued.rfind(END_THINK)
        return Thinking.OPEN if is_open else Thinking.OVER
    if prompt_tail.endswith(THINK):
        return Thinking.OPEN
    return Thinking.OVER if prompt_tail.endswith(END_THINK) else Thinking.UNDECIDED


class ThoughtSplitter:
    """Space around thoughts belongs to neither side."""

    def __init__(self, state: Thinking) -> None:
        self._state = state
        self._held = ""  # while undecided, and space that thoughts may end with
        self._finder = MarkerFinder((END_THINK,))
        self._begun = False  # of the thoughts, or of what follows them
        self._thought = False

    def push(self, text: str) -> tuple[str, str]:
        """The thoughts and the rest in this text, as far as they are certain."""
        if self._state is Thinking.UNDECIDED:
            text = self._decide(text)
        if self._state is Thinking.OPEN:
            return self._in_thoughts(text)
        if self._state is Thinking.OVER:
            return "", self._after(text)
        return "", ""

    def finish(self) -> tuple[str, str]:
        """The rest, when the text ends."""
        if self._state is Thinking.OPEN:
            return self._thoughts(self._finder.flush()), ""
        held, self._held = self._held, ""
        return "", held

    def _decide(self, text: str) -> str:
        text = self._held + text
        self._held = ""
        start = text.lstrip()
        if start.startswith(THINK):
            self._state = Thinking.OPEN
            return start[len(THINK) :]
        if THINK.startswith(start):
            self._held = text
            return ""
        self._state = Thinking.OVER
        return text

    def _in_thoughts(self, text: str) -> tuple[str, str]:
        before, marker, rest = self._finder.push(text)
        thoughts = self._thoughts(before)
        if not marker:
            return thoughts, ""
        self._state, self._held, self._begun, self._thought = Thinking.OVER, "", False, True
        return thoughts, self._after(rest)

    def _thoughts(self, text: str) -> str:
        """Without the space at both ends."""
        text = self._held + (text if self._begun else text.lstrip())
        kept = text.rstrip()
        self._held = text[len(kept) :]
        self._begun = self._begun or bool(kept)
        return kept

    def _after(self, text: str) -> str:
        if self._thought and not self._begun:
            text = text.lstrip()
            self._begun = bool(text)
        return text
