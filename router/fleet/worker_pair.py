"""The sessions of one attempt's two legs."""

from __future__ import annotations

from dataclasses import dataclass

from core.request import Phase
from router.fleet.sessions import WorkerSession


@dataclass(frozen=True, slots=True)
class WorkerPair:
    """P and D of an attempt; either may be absent, not both (see `policy.Pair`)."""

    prefill: WorkerSession | None
    decode: WorkerSession | None

    def __post_init__(self) -> None:
        assert self.prefill is not None or self.decode is not None

    def session(self, phase: Phase) -> WorkerSession | None:
        return self.prefill if phase is Phase.PREFILL else self.decode
