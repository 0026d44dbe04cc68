"""A worker as operators see it: also one that can't be given work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from core.load import LoadReport
from state.store import Member

WorkerState = Literal["ready", "starting", "draining", "leaving", "unreachable"]


@dataclass(frozen=True, slots=True)
class Standing:
    """One incarnation of a worker, with the last that it said of itself."""

    member: Member
    load: LoadReport
    connected: bool
    retired: bool
    """No longer a member: it finishes what it has."""
    num_attempts: int
    """Legs that this router has there."""

    @property
    def state(self) -> WorkerState:
        if not self.connected:
            return "unreachable"
        if self.retired:
            return "leaving"
        if self.load.draining or self.member.draining:
            return "draining"
        return "ready" if self.load.ready else "starting"
