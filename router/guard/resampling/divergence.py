"""How far two next-token distributions are apart, from the likeliest tokens of each.

The Kullback-Leibler divergence D(p || q) = sum of p ln(p / q), in nats. What isn't known token by
token is counted in lumps, which can only make it smaller (the log-sum inequality; Cover and Thomas,
"Elements of Information Theory", 2.7): the result is a lower bound.

    p lists   |  both list: one by one   |  only p lists: one lump  |  rest: one lump
    q         |  known                   |  at most what q leaves   |  what then is left

The second lump of q is not known, only bounded (it is no list of q's, so each of its tokens is no
likelier than q's last, and all of them together no more than what q's list leaves). Within that the
share is taken that makes the result smallest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

TopTokens = Sequence[tuple[int, float]]
"""Token ids with natural-log probabilities: the likeliest of a distribution, and no others."""

_TINY = 1e-9
"""Below this a probability is rounding: sums of float32 probabilities are no better."""


def divergence_at_least(p: TopTokens, q: TopTokens) -> float:
    """A lower bound of D(p || q), 0 or more; exact where both list the whole vocabulary."""
    known = dict(q)
    total, only_p, num_only_p = 0.0, 0.0, 0
    p_rest, q_rest = 1.0, 1.0
    for token_id, logprob in p:
        probability = math.exp(logprob)
        p_rest -= probability
        other = known.get(token_id)
        if other is None:
            only_p += probability
            num_only_p += 1
        else:
            total += probability * (logprob - other)
            q_rest -= math.exp(other)
    most = _unlisted_at_most(q, num_only_p)
    p_rest, q_rest = max(0.0, p_rest), max(0.0, q_rest)
    lump = 0.0
    if only_p > 0.0:
        lump = min(most, q_rest, q_rest * only_p / (only_p + p_rest))
    total += _term(only_p, lump) + _term(p_rest, q_rest - lump)
    return max(0.0, total)


def _unlisted_at_most(q: TopTokens, num_tokens: int) -> float:
    """What so many tokens that `q` doesn't list can have together."""
    if not q:
        return 1.0
    left = max(0.0, 1.0 - math.fsum(math.exp(logprob) for _, logprob in q))
    return min(left, num_tokens * math.exp(min(logprob for _, logprob in q)))


def _term(p: float, q: float) -> float:
    return 0.0 if p <= 0.0 else p * math.log(p / max(q, _TINY))
