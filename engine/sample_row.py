"""What a sampler needs to know about one token to be sampled."""

from __future__ import annotations

from typing import NamedTuple

from core.request import SamplingParams
from engine.token_history import TokenHistory
from text.structure.state import GrammarState


class SampleRow(NamedTuple):
    """One token of one choice; the first tokens of n choices share one row of logits.

    `position` is the token's index among the choice's output tokens.
    """

    params: SamplingParams
    choice: int
    position: int
    history: TokenHistory | None
    """Of all tokens before; only where the request looks at them."""
    logits_row: int
    eos_token_ids: tuple[int, ...]
    grammar: GrammarState | None = None
    """Whose mask says which tokens may follow."""
