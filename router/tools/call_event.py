"""What a parser of calls finds in a text that comes in pieces."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins, of the function of this name."""

    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of the last begun call's arguments, as JSON text."""

    text: str


Piece = str | CallStart | CallArguments
"""A plain string is content."""


class CallParser(Protocol):
    """Tells calls from content. What it finds doesn't depend on how the text was cut."""

    def push(self, text: str) -> list[Piece]:
        """What is certain with this text."""
        ...

    def finish(self, *, cut: bool) -> list[Piece]:
        """The rest, when the text ends; `cut`: in the middle, because of a limit. Then half a
        marker and a call without a name are nothing; else they are content."""
        ...


def joined(pieces: list[Piece]) -> list[Piece]:
    """The same with neighbours of one kind as one, and without empty ones."""
    result: list[Piece] = []
    for piece in pieces:
        last = result[-1] if result else None
        if isinstance(piece, str) and isinstance(last, str):
            result[-1] = last + piece
        elif isinstance(piece, CallArguments) and isinstance(last, CallArguments):
            result[-1] = CallArguments(last.text + piece.text)
        elif piece and not (isinstance(piece, CallArguments) and not piece.text):
            result.append(piece)
    return result
