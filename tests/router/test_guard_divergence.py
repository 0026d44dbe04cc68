"""How far two distributions are apart is never overstated, whatever is known of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.guard.resampling.divergence import TopTokens, divergence_at_least

ROUNDING = 1e-7
SIZE = 12


def distributions() -> st.SearchStrategy[list[float]]:
    """Probabilities of the tokens 0 to 11."""
    weights = st.lists(st.floats(1e-6, 1.0), min_size=SIZE, max_size=SIZE)
    return weights.map(lambda found: [weight / math.fsum(found) for weight in found])


def top(probabilities: list[float], count: int) -> TopTokens:
    ranked = sorted(range(SIZE), key=lambda token: probabilities[token], reverse=True)
    return [(token, math.log(probabilities[token])) for token in ranked[:count]]


def exactly(p: list[float], q: list[float]) -> float:
    return math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


@given(distributions(), distributions(), st.integers(0, SIZE), st.integers(0, SIZE))
def test_what_is_known_is_a_lower_bound(
    p: list[float], q: list[float], num_p: int, num_q: int
) -> None:
    found = divergence_at_least(top(p, num_p), top(q, num_q))
    assert 0.0 <= found <= exactly(p, q) + ROUNDING


@given(distributions(), distributions())
def test_with_all_tokens_known_it_is_exact(p: list[float], q: list[float]) -> None:
    found = divergence_at_least(top(p, SIZE), top(q, SIZE))
    assert found == pytest.approx(exactly(p, q), abs=ROUNDING)


@given(distributions(), st.integers(0, SIZE), st.integers(0, SIZE))
def test_a_distribution_is_not_away_from_itself(p: list[float], num_p: int, num_q: int) -> None:
    assert divergence_at_least(top(p, num_p), top(p, num_q)) <= ROUNDING


def test_likely_tokens_that_the_other_does_not_list_count() -> None:
    refuses, complies = [(1, math.log(0.9))], [(2, math.log(0.9))]
    expected = 0.9 * math.log(0.9 / 0.1) + 0.1 * math.log(0.1 / 0.9)
    assert divergence_at_least(refuses, complies) == pytest.approx(expected)


def test_a_list_that_leaves_nothing_and_one_that_leaves_something_are_far_apart() -> None:
    sure = [(1, 0.0)]
    unsure = [(1, math.log(0.5))]
    assert divergence_at_least(sure, unsure) == pytest.approx(math.log(2.0))
    assert 5.0 < divergence_at_least(unsure, sure) < math.inf


def test_the_sums_of_rounded_probabilities_are_no_difference() -> None:
    p = [(1, math.log(0.7) + 1e-7), (2, math.log(0.3))]
    q = [(1, math.log(0.7)), (2, math.log(0.3) - 1e-7)]
    assert divergence_at_least(p, q) < 1e-5 and divergence_at_least(q, p) < 1e-5
