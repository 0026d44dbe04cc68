"""What the sampler needs to know about one token to be sampled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.request import SamplingParams


@dataclass(frozen=True, slots=True)
class SampleRow:
    """One token of one choice; the first tokens of n choices share one row of logits.

    The token ids are read only when penalties are on. `position` is the token's index among the
    choice's output tokens.
    """

    params: SamplingParams
    choice: int
    position: int
    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]
    logits_row: int
    eos_token_ids: tuple[int, ...]
