"""What one step computes: which tokens of which sequences, and where a token is sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from engine.sequence import Sequence


class PlannedChunk(NamedTuple):
    """`num_tokens` tokens of one sequence from its first uncomputed one.

    `sample_choices` are the choices whose next token is drawn from the chunk's last position: none
    while the chunk ends before the sequence does, several where a prompt's first tokens are drawn.
    """

    sequence: Sequence
    num_tokens: int
    sample_choices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Chunks of one step; the first `num_decode` of them have exactly one token each."""

    chunks: tuple[PlannedChunk, ...]
    num_decode: int

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)


def make_plan(chunks: list[PlannedChunk]) -> StepPlan | None:
    """The chunks as kernels want them, single tokens first; None if there are none."""
    if not chunks:
        return None
    singles = [chunk for chunk in chunks if chunk.num_tokens == 1]
    if len(singles) == len(chunks):
        return StepPlan(tuple(singles), len(singles))
    longer = [chunk for chunk in chunks if chunk.num_tokens > 1]
    return StepPlan(tuple(singles + longer), len(singles))
