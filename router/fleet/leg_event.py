"""What an attempt hears from its legs, whichever worker they run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from core.handoff import Moved, Started
from core.request import (
    AttemptDone,
    AttemptFailed,
    Phase,
    Pinned,
    PromptLogprobs,
    TokenEvent,
)


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """The session broke: the leg is over, and nothing more of it will come."""

    transfer_id: str
    worker_id: str
    message: str


@dataclass(frozen=True, slots=True)
class WorkerDraining:
    """The leg's worker is about to leave: it would rather see the leg go on elsewhere."""

    transfer_id: str


LegEvent = (
    Started
    | TokenEvent
    | PromptLogprobs
    | Pinned
    | Moved
    | AttemptDone
    | AttemptFailed
    | WorkerLost
    | WorkerDraining
)


@dataclass(slots=True)
class FromLeg:
    """An event and the leg it came from. As with `TokenEvent`, nobody changes one."""

    phase: Phase
    event: LegEvent

    @property
    def transfer_id(self) -> str:
        return self.event.transfer_id


LegEnd = AttemptDone | AttemptFailed
OnLegEnd = Callable[[Phase, LegEnd], None]
"""Hears, for metrics, how legs end: well, also where the request no longer listens, or failing."""

Sink = Callable[[FromLeg], None]
"""Takes an event at once and never blocks."""
