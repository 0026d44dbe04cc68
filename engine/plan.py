"""What one step computes: which tokens of which sequences, and where a token is sampled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from engine.sequence import Sequence


class PlannedChunk(NamedTuple):
    """`num_tokens` tokens of one sequence from its first uncomputed one.

    `sample_choices` are the choices whose next token is drawn from the chunk's last position: none
    while the chunk ends before the sequence does, several where a prompt's first tokens are drawn.
    Of the token after each of the first `num_scored` positions, which is the prompt's own, the
    log-probability is wanted: all positions of the chunk but one from which choices are drawn.
    """

    sequence: Sequence
    num_tokens: int
    sample_choices: tuple[int, ...]
    num_scored: int = 0


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Chunks of one step; the first `num_decode` of them have exactly one token each."""

    chunks: tuple[PlannedChunk, ...]
    num_decode: int
    num_scored: int = 0
    """Of all chunks together."""

    @property
    def num_tokens(self) -> int:
        return sum(chunk.num_tokens for chunk in self.chunks)


MAX_SCORED = 64
"""Positions of one step whose tokens are scored: each takes a row of logits, as a choice does."""


def prompt_chunk(sequence: Sequence, num_tokens: int) -> PlannedChunk:
    """The next `num_tokens` tokens of a sequence, whose choices are drawn if they are its last."""
    ends = num_tokens == sequence.num_uncomputed
    num_scored = num_tokens - ends if sequence.scores_prompt else 0
    return PlannedChunk(sequence, num_tokens, sequence.choices if ends else (), num_scored)


def make_plan(chunks: list[PlannedChunk], num_scored: int = 0) -> StepPlan | None:
    """The chunks as kernels want them, single tokens first; None if there are none. `num_scored`
    is the sum of theirs."""
    if not chunks:
        return None
    singles = [chunk for chunk in chunks if chunk.num_tokens == 1]
    if len(singles) == len(chunks):
        return StepPlan(tuple(singles), len(singles), num_scored)
    longer = [chunk for chunk in chunks if chunk.num_tokens > 1]
    return StepPlan(tuple(singles + longer), len(singles), num_scored)
