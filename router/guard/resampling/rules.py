"""What a policy with a prompt wants: which tokens are compared, and how others are drawn."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace

from core.request import SamplingParams

TOP_TOKENS = 32
"""Of either distribution, so many of its likeliest tokens are compared one by one."""

DRAW_BITS = 16
"""Of a choice's number, this many are its own: there are far fewer choices in a request."""


class OnFailure(enum.StrEnum):
    """What becomes of a suspicious token that could not be compared."""

    ALLOW = "allow"
    BLOCK = "block"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResampleRules:
    """Limits are per choice of a request. `policy` is the operator's name, and a label of metrics.

    A token is suspicious where a term of the policy's rules has begun, and among the answer's first
    ones.
    """

    policy: str
    prompt: str
    """What the model is told before the conversation, for comparison."""
    threshold: float
    """Divergence, in nats, above which a token is drawn again."""
    first_tokens: int
    max_checks: int
    """Suspicious tokens beyond these can't be compared."""
    max_resamples: int
    """Of one position: a drawn token that begins a term again is drawn once more, so often."""
    temperature_step: float
    """Each draw of a position is so much hotter than the one before."""
    timeout_s: float
    """Of each draw."""
    on_check_failure: OnFailure


def compared_sampling(sampling: SamplingParams) -> SamplingParams:
    """The request's own, telling enough of each token's distribution."""
    return replace(sampling, logprobs=max(TOP_TOKENS, sampling.logprobs or 0))


def draw_sampling(
    sampling: SamplingParams, rules: ResampleRules, *, position: int, number: int
) -> SamplingParams:
    """How the `number`th other token (from 1 on) of this position is drawn: alone, and hotter."""
    return replace(
        compared_sampling(sampling),
        max_tokens=position + 1,
        temperature=sampling.temperature + number * rules.temperature_step,
        prompt_logprobs=None,
    )


def draw_counter(choice: int, number: int) -> int:
    """In place of the choice, in the counter that random numbers are made from.

    No choice of a request has this number, so no other draw has its random number; and it is the
    same whoever computes it.
    """
    assert choice < 1 << DRAW_BITS and number > 0
    return choice | number << DRAW_BITS
