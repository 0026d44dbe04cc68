"""What a worker's role is to the step loop that drives it.

All methods are called by the step loop's thread only. A role decides (through its pure scheduler)
and applies the consequences to the pool and the transfers; it never computes and never waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from core.handoff import Handoff
from core.load import LoadReport
from core.request import Attempt
from engine.plan import StepPlan
from engine.sampler import Sampled
from kv_cache.block_pool import BlockPool
from protos.codec import WorkerEvent
from text.structure.state import GrammarState


@dataclass(frozen=True, slots=True)
class Submit:
    """Run this attempt; on a decode worker `handoff` says where the prompt's KV is.

    `grammar` is where the attempt's output is in its grammar, if it has one.
    """

    attempt: Attempt
    handoff: Handoff | None = None
    grammar: GrammarState | None = None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop the attempt, or some of its choices. May arrive before the attempt, or again."""

    transfer_id: str
    choices: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Move:
    """Let go of the attempt: offer the KV of its choices, so that they go on elsewhere."""

    transfer_id: str


class Role(Protocol):
    """Prefill or decode."""

    pool: BlockPool

    def handle(self, message: object, now: float) -> None:
        """Takes a `Submit`, a `Cancel`, a `Move`, or an event of the role's own transfers."""
        ...

    def schedule(self, now: float) -> StepPlan | None:
        """The next step, with all its blocks allocated; None if nothing can be computed now."""
        ...

    def complete(self, plan: StepPlan, sampled: list[Sampled], now: float) -> None:
        """Takes what the step sampled, one for each (chunk, choice) of the plan in order."""
        ...

    def fail(self, transfer_id: str, code: str, message: str) -> None:
        """Ends an attempt that can't be computed; the planned step is not completed."""
        ...

    def take_events(self) -> list[WorkerEvent]:
        """Events for routers since the last call, in order."""
        ...

    def next_deadline(self) -> float | None:
        """When `schedule` must be called again even if nothing arrives."""
        ...

    def load(self) -> LoadReport:
        """The load now; the step loop fills in what only it knows."""
        ...

    @property
    def num_unfinished(self) -> int:
        """Attempts and leases that a drain waits for."""
        ...
