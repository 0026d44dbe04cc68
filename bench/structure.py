"""What following a grammar costs a decode step, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.report import SCHEMA_VERSION, MachineReport
from bench.stats import median


@dataclass(frozen=True, slots=True)
class StructureCase:
    """Steps of one batch with and without a grammar, step by step in turn; medians in seconds.

    `ratio` is the median of what a step with grammars takes by what the step before it takes, so
    that a busy machine hits both alike. `mask_s` is what all masks of one step take by themselves,
    one after the other: as a rule a thread computes them while the step computes.
    """

    name: str
    batch: int
    num_steps: int
    free_step_s: float
    structured_step_s: float
    ratio: float
    mask_s: float

    @property
    def mask_share(self) -> float:
        """Of a step: what the masks would add if they were not computed meanwhile."""
        return self.mask_s / self.free_step_s


@dataclass(frozen=True, slots=True)
class StructureReport:
    """All cases of one engine, and how long the grammar took to compile."""

    model: str
    compile_s: float
    cases: tuple[StructureCase, ...]
    machine: MachineReport = field(default_factory=MachineReport)
    schema_version: int = SCHEMA_VERSION


def structure_case(
    name: str,
    batch: int,
    pairs_s: Sequence[tuple[float, float]],
    masks_s: Sequence[float],
) -> StructureCase:
    """Sums up pairs of steps, without and with grammars, and single steps' masks."""
    free_s = [free for free, _ in pairs_s]
    structured_s = [structured for _, structured in pairs_s]
    return StructureCase(
        name=name,
        batch=batch,
        num_steps=len(structured_s),
        free_step_s=median(free_s),
        structured_step_s=median(structured_s),
        ratio=median([structured / free for free, structured in pairs_s]),
        mask_s=median(masks_s),
    )
