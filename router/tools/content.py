"""Content between calls: space next to a call belongs to the call's form, not to the text."""

from __future__ import annotations


class Content:
    """Holds back space until it is known what follows it."""

    def __init__(self) -> None:
        self._space = ""
        self.called = False
        """Whether there was a call."""

    def push(self, text: str) -> str:
        """What of the text is content for certain."""
        text = self._space + text
        kept = text.rstrip()
        self._space = text[len(kept) :]
        return kept

    def call(self) -> None:
        """A call begins here."""
        self._space = ""
        self.called = True

    def end_call(self) -> None:
        """A call's closing marker is here."""
        self._space = ""

    def flush(self) -> str:
        """The space at the end; none behind a call."""
        space, self._space = self._space, ""
        return "" if self.called else space
