"""The edges of the cumulative distribution, with random numbers chosen by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.draw import Draws, Filters, draw, draw_filtered

LARGEST = 1 - 2.0**-53


def draws_of(logits: list[float], numbers: list[float]) -> Draws:
    rows = torch.tensor([logits] * len(numbers))
    return Draws(
        logits=rows,
        best=rows.amax(-1),
        temperature=torch.ones(len(numbers)),
        uniform=torch.tensor(numbers, dtype=torch.float64),
    )


def test_the_smallest_number_takes_the_first_token_that_has_any_weight() -> None:
    assert draw(draws_of([-torch.inf, -torch.inf, 0.0, 1.0], [0.0])).tolist() == [2]


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 7, 1000, 49_152])
def test_the_largest_number_takes_the_last_token_that_has_any_weight(num_tokens: int) -> None:
    logits = [0.0] * num_tokens + [-torch.inf, -torch.inf]
    assert draw(draws_of(logits, [LARGEST])).tolist() == [num_tokens - 1]


def test_a_number_on_a_border_belongs_to_the_token_above() -> None:
    numbers = [0.25 - 2**-53, 0.25, 0.5, 0.75, LARGEST]
    assert draw(draws_of([0.0] * 4, numbers)).tolist() == [0, 1, 2, 3, 3]


def test_sums_over_a_large_vocabulary_are_exact_to_the_token() -> None:
    logits = torch.randn(49_152, generator=torch.Generator().manual_seed(4)).tolist()
    one = draws_of(logits, [0.0])
    cumulative = np.cumsum(one.weights(one.logits)[0].double().numpy())
    below = np.arange(0, 49_000, 500)
    borders = cumulative[below] / cumulative[-1]
    just_above = draws_of(logits, (borders * (1 + 1e-12)).tolist())
    assert draw(just_above).tolist() == (below + 1).tolist()
    just_below = draws_of(logits, (borders * (1 - 1e-12)).tolist())
    assert draw(just_below).tolist() == below.tolist()


def test_a_filter_that_is_off_cuts_nothing_however_unlikely() -> None:
    # The first token's weight is lost when added to the second's, but it comes first.
    draws = draws_of([-40.0, 0.0, -torch.inf], [0.0])
    filters = Filters(
        top_k=torch.tensor([2]),
        top_p=torch.tensor([1.0], dtype=torch.float64),
        min_p=torch.tensor([0.0]),
    )
    assert draw_filtered(draws, filters).tolist() == [0]
