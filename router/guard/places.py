"""Sets of places in a text, each as intervals in order that don't touch."""

from __future__ import annotations

from collections.abc import Sequence

Place = tuple[int, int]
"""Begin and end."""


def united(places: Sequence[Place]) -> list[Place]:
    """Any intervals as a set."""
    found: list[Place] = []
    for begin, end in sorted(places):
        if found and begin <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((begin, end))
    return found
