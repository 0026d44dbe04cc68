"""What a run asks of a house: who may be hit and how, and what is left when all is over.

A kind of house that is still to come (Ray's, or two network namespaces with a raylet in each) is
one more class with these methods; plan, load and verdict don't know which one they are about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from bench.chaos.plan import FaultKind, PlannedFault
from bench.chaos.verdict import Books, Memory


@dataclass(frozen=True, slots=True)
class Door:
    """A router, as clients know it."""

    name: str
    base_url: str


class House(Protocol):
    """Processes that serve, and that faults are done to."""

    @property
    def doors(self) -> Sequence[Door]: ...

    async def start(self) -> None:
        """Returns when everything serves. Raises ServerError."""
        ...

    def targets(self) -> Mapping[FaultKind, Sequence[str]]:
        """Who may be hit by each kind that this house can carry out."""
        ...

    async def carry_out(self, fault: PlannedFault) -> float:
        """Does it, and whatever an operator's supervisor would do next, once its target is free of
        earlier ones; returns when its target serves again, and says when it was hit.

        Raises ServerError if it doesn't serve again.
        """
        ...

    def was_away(self, door: str, since_s: float) -> bool:
        """Whether a fault has taken this router's connections at some time since then."""
        ...

    def crashes(self) -> Sequence[str]:
        """Processes that ended without being told, with the end of what they said."""
        ...

    def faults_within(self) -> Counter[str]:
        """Faults that workers carried out by themselves (`faults.spec`), by point and action."""
        ...

    def memory(self) -> tuple[Memory, ...]:
        """What each process that was never started anew takes now."""
        ...

    async def books(self) -> tuple[Books, ...]:
        """Every worker's blocks, once nobody holds any or the deadline for that has passed."""
        ...

    async def stop(self) -> Sequence[str]:
        """Ends everything as an operator would; returns what was left and had to be killed."""
        ...
