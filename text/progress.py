"""How a long fetch tells its caller how far it is."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called from time to time, possibly from several threads; must return quickly."""

    def __call__(self, what: str, done_bytes: int, total_bytes: int | None) -> None:
        """`what` names the file; `total_bytes` is None while the size is unknown."""
        ...


def silent(what: str, done_bytes: int, total_bytes: int | None) -> None:
    """A `Progress` that shows nothing."""
