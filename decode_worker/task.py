"""One attempt on a decode worker, and when what happened to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from core.handoff import Handoff
from core.request import Attempt, LegTimings
from engine.sequence import Sequence


@dataclass(slots=True)
class Task:
    """Times are the role's clock's; None: not yet."""

    attempt: Attempt
    handoff: Handoff | None
    submitted_at: float
    sequences: list[Sequence] = field(default_factory=list)
    admitted_at: float | None = None
    pulled_at: float | None = None
    chunk_ended_at: float | None = None
    stepped_at: float | None = None
    computed_at: float | None = None

    def timings(self) -> LegTimings:
        admitted = self.submitted_at if self.admitted_at is None else self.admitted_at
        return LegTimings(
            queue_s=admitted - self.submitted_at,
            prefill_s=_elapsed(self.admitted_at, self.computed_at),
            transfer_s=_elapsed(self.admitted_at, self.pulled_at),
            handoff_s=_elapsed(self.chunk_ended_at, self.stepped_at),
        )


def _elapsed(start: float | None, end: float | None) -> float:
    return 0.0 if start is None or end is None else end - start
