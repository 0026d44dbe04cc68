"""One suspicious token of an answer: how long it was withheld, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckTimeline:
    """Moments on the router's clock."""

    choice: int
    position: int
    """Of the token, among the choice's output tokens."""
    began: float
    ended: float
    divergence: float | None
    """Nats, at least; None: nothing was there to compare it with."""
    num_resamples: int
    outcome: str
