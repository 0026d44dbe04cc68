"""Random choice of one token per row by inverting the cumulative distribution.

One uniform number u picks the first token, in vocabulary order, at which the cumulative weight
exceeds u x total. Weights are exp((logit - best) / temperature): the best token weighs exactly 1.

Every operation here treats each row by itself and in a fixed order (cumulative sums rather than
tree sums), so that a row's token doesn't depend on the rest of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.top_tokens import top_tokens

# How many candidates are looked at, until they are enough: most filters leave few tokens, and
# finding the best 512 of 49,152 takes 1/15 of the time of sorting all, the best 4,096 1/4.
_WIDTHS = (512, 4096)


@dataclass(frozen=True, slots=True)
class Filters:
    """What restricts the draw, by row; all [n]. `top_k` equals the vocabulary's size if unset."""

    top_k: torch.Tensor  # int64
    top_p: torch.Tensor  # float64
    min_p: torch.Tensor  # float32

    def rows(self, index: torch.Tensor) -> Filters:
        return Filters(self.top_k[index], self.top_p[index], self.min_p[index])


@dataclass(frozen=True, slots=True)
class Draws:
    """Rows to be drawn from."""

    logits: torch.Tensor  # [n, vocab] float32
    best: torch.Tensor  # [n] float32, each row's largest logit
    temperature: torch.Tensor  # [n] float32
    uniform: torch.Tensor  # [n] float64 in [0, 1 - 2^-53]

    def rows(self, index: torch.Tensor) -> Draws:
        return Draws(
            self.logits[index], self.best[index], self.temperature[index], self.uniform[index]
        )

    def weights(self, logits: torch.Tensor) -> torch.Tensor:
        """Unnormalised probabilities of some or all of the rows' logits, [n, any] float32."""
        distances = logits - self.best[:, None]
        # In place: at these sizes fresh memory costs more than the arithmetic.
        return distances.div_(self.temperature[:, None]).exp_()


def draw(draws: Draws) -> torch.Tensor:
    """Tokens from the whole vocabulary, [n] int64."""
    return _invert(draws.weights(draws.logits), draws.uniform)


def draw_filtered(draws: Draws, filters: Filters) -> torch.Tensor:
    """Tokens from what `min_p`, `top_k` and `top_p` leave, in this order, [n] int64.

    A token is kept if its weight is at least min_p times the best one's, if fewer than top_k tokens
    come before it, and if those before it have less than top_p of the mass left by the other two.
    Equal logits are ordered by id.
    """
    vocab_size = draws.logits.shape[-1]
    totals = _totals(draws, filters)
    chosen = torch.empty_like(filters.top_k)
    pending = torch.arange(len(chosen), device=chosen.device)
    for width in (*(w for w in _WIDTHS if w < vocab_size), vocab_size):
        top_k = filters.top_k[pending]
        fits = (top_k <= width) | (top_k == vocab_size)
        index = pending[fits]
        if len(index):
            chosen[index], complete = _draw_among(
                draws.rows(index), filters.rows(index), totals[index], width
            )
            pending = torch.cat([index[~complete], pending[~fits]])
        if not len(pending):
            break
    return chosen


def _totals(draws: Draws, filters: Filters) -> torch.Tensor:
    """Mass that top_p refers to for rows without top_k, [n] float64; 0 where it isn't needed.

    With top_k the candidates' own sum is used. Which of the two holds follows from the row's own
    parameters alone, never from how many candidates the batch looks at.
    """
    totals = torch.zeros_like(draws.uniform)
    whole = (filters.top_k == draws.logits.shape[-1]) & (filters.top_p < 1)
    index = torch.nonzero(whole)[:, 0]
    if len(index):
        some = draws.rows(index)
        weights = some.weights(some.logits)
        weights = torch.where(weights >= filters.min_p[index][:, None], weights, 0.0)
        totals[index] = weights.cumsum(-1, dtype=torch.float64)[:, -1]
    return totals


def _draw_among(
    draws: Draws, filters: Filters, totals: torch.Tensor, num_candidates: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens drawn from the `num_candidates` best, and whether those are all that is left, [n]."""
    ids = top_tokens(draws.logits, num_candidates)  # [n, num_candidates]
    weights = draws.weights(draws.logits.gather(-1, ids))
    rank = torch.arange(num_candidates, device=ids.device)
    keep = (weights >= filters.min_p[:, None]) & (rank < filters.top_k[:, None])
    keep &= _inside_nucleus(torch.where(keep, weights, 0.0), filters.top_p, totals)
    complete = ~keep[:, -1] | (filters.top_k <= num_candidates)
    in_order, places = ids.sort(dim=-1)
    kept_weights = torch.where(keep, weights, 0.0).gather(-1, places)
    index = _invert(kept_weights, draws.uniform)
    return in_order.gather(-1, index[:, None])[:, 0], complete


def _inside_nucleus(
    weights: torch.Tensor, top_p: torch.Tensor, totals: torch.Tensor
) -> torch.Tensor:
    """Whether the tokens before each one have less than top_p of the mass, [n, num_candidates]."""
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    total = torch.where(totals > 0, totals, cumulative[:, -1])
    # Without top_p nothing is cut, not even by a rounding error of the sum.
    limit = torch.where(top_p < 1, top_p * total, torch.inf)
    inside = torch.ones_like(weights, dtype=torch.bool)
    inside[:, 1:] = cumulative[:, :-1] < limit[:, None]
    return inside


def _invert(weights: torch.Tensor, uniform: torch.Tensor) -> torch.Tensor:
    """Index of the first element whose cumulative weight exceeds uniform x total, [n] int64.

    `weights` is [n, m], with at least one positive element in each row; elements of weight 0 are
    never chosen.
    """
    cumulative = weights.cumsum(-1, dtype=torch.float64)
    # u is at most 1 - 2^-53, which takes half a unit in the last place or more off any total: the
    # target stays below the total even when rounded.
    target = uniform * cumulative[:, -1]
    return torch.searchsorted(cumulative, target[:, None], right=True)[:, 0]
