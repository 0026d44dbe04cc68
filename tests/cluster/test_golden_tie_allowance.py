"""The allowance of golden tests itself: it must forgive rounding and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from fakes_golden import TIE, Answer, Ask, ChoiceAnswer, Floats, check, check_tokens, is_tie

from core.request import SamplingParams, TokenLogprobs
from engine.random_numbers import uniform
from engine.sample_row import SampleRow
from engine.token_history import TokenHistory

GREEDY = SamplingParams(max_tokens=4, temperature=0.0)
SEED = 11


def row(params: SamplingParams, output: tuple[int, ...] = ()) -> SampleRow:
    return SampleRow(params, 0, len(output), TokenHistory((0,), output), 0, (2,))


def number() -> float:
    """What a request with SEED draws for its first token."""
    return float(uniform([SEED], [0], [0])[0])


def split_at(boundary: float) -> Floats:
    """Logits of four tokens: 0 and 2 share all the probability, divided at `boundary`."""
    weights = np.array([boundary, 0.0, 1 - boundary, 0.0])
    with np.errstate(divide="ignore"):
        logits: Floats = np.log(weights)
    return logits


def test_greedy_forgives_only_the_two_best_when_they_are_equal() -> None:
    near = np.array([1.0, 3.0, 3.0 - TIE / 2, 0.0])
    assert is_tie(near, row(GREEDY), (1, 2))
    assert is_tie(near, row(GREEDY), (2, 1))
    assert not is_tie(near, row(GREEDY), (1, 0))
    assert not is_tie(np.array([1.0, 3.0, 3.0 - 2 * TIE, 0.0]), row(GREEDY), (1, 2))


def test_two_equal_tokens_below_the_best_are_no_tie() -> None:
    assert not is_tie(np.array([1.0, 3.0, 1.0, 0.0]), row(GREEDY), (0, 2))


def test_greedy_ties_are_judged_after_penalties() -> None:
    params = SamplingParams(max_tokens=4, temperature=0.0, presence_penalty=1.0)
    logits = np.array([0.0, 3.0, 2.0, 1.0])
    assert is_tie(logits, row(params, output=(1,)), (1, 2))
    assert not is_tie(logits, row(GREEDY, output=(1,)), (1, 2))


@pytest.mark.parametrize(("distance", "forgiven"), [(0.5, True), (-0.5, True), (2, False)])
def test_a_draw_is_forgiven_on_the_border_of_both_tokens(distance: float, forgiven: bool) -> None:
    params = SamplingParams(max_tokens=4, temperature=1.0, seed=SEED)
    logits = split_at(number() + distance * TIE)
    assert is_tie(logits, row(params), (0, 2)) is forgiven
    assert is_tie(logits, row(params), (2, 0)) is forgiven


def test_a_draw_between_others_forgives_nothing() -> None:
    params = SamplingParams(max_tokens=4, temperature=1.0, seed=SEED)
    weights = np.array([number(), 0.02, 0.98 - number(), 1e-12])
    logits = np.log(weights)
    assert is_tie(logits, row(params), (0, 1))
    assert not is_tie(logits, row(params), (0, 2)), "token 1 lies between them"
    assert not is_tie(logits, row(params), (1, 2)), "their border is elsewhere"


def test_a_token_that_filters_forbid_is_never_forgiven() -> None:
    logits = split_at(number())
    params = SamplingParams(max_tokens=4, temperature=1.0, seed=SEED)
    assert not is_tie(logits, row(params), (0, 1)), "token 1 has no probability"
    narrow = SamplingParams(max_tokens=4, temperature=1.0, seed=SEED, min_p=1.0)
    assert not is_tie(logits, row(narrow), (0, 2)), "only one of them is left"


class Logits:
    """Says the same of every context, and remembers which it was asked about."""

    def __init__(self, logits: Sequence[float]) -> None:
        self._logits = np.array(logits)
        self.asked: list[tuple[int, ...]] = []

    def __call__(self, token_ids: Sequence[int]) -> Floats:
        self.asked.append(tuple(token_ids))
        return self._logits


ASK = Ask("it", (0, 3), GREEDY)
TIED = (1.0, 3.0, 3.0, 0.0)


def test_equal_tokens_need_no_second_look() -> None:
    logits = Logits(TIED)
    assert check_tokens(ASK, 0, [1, 2, 3], [1, 2, 3], logits) == 3
    assert logits.asked == []


def test_the_first_difference_alone_is_judged_in_its_own_context() -> None:
    logits = Logits(TIED)
    assert check_tokens(ASK, 0, [3, 1, 0, 0], [3, 2, 1, 3], logits) == 1
    assert logits.asked == [(0, 3, 3)]


def test_a_clear_difference_fails() -> None:
    with pytest.raises(AssertionError, match="position 1"):
        check_tokens(ASK, 0, [3, 1], [3, 0], Logits(TIED))


@pytest.mark.parametrize("actual", [[], [1], [1, 2, 3, 1]])
def test_an_output_of_another_length_fails_whatever_the_logits(actual: list[int]) -> None:
    with pytest.raises(AssertionError, match=r"of 3 tokens"):
        check_tokens(ASK, 0, [1, 2, 3], actual, Logits(TIED))


def answer(token_ids: list[int], reason: str = "length") -> Answer:
    return Answer([ChoiceAnswer(token_ids, [], reason)])


def test_a_wrong_finish_reason_fails() -> None:
    check(ASK, answer([1, 2]), answer([1, 2]), Logits(TIED))
    with pytest.raises(AssertionError):
        check(ASK, answer([1, 2]), answer([1, 2], "stop"), Logits(TIED))


def test_a_missing_choice_fails() -> None:
    with pytest.raises(AssertionError):
        check(ASK, answer([1, 2]), Answer([]), Logits(TIED))


@pytest.mark.parametrize(
    "got",
    [
        [],
        [TokenLogprobs(-0.6, ((1, -0.5),))],
        [TokenLogprobs(-0.5, ())],
        [TokenLogprobs(-0.5, ((1, -0.502),))],
    ],
)
def test_missing_or_wrong_log_probabilities_fail(got: list[TokenLogprobs]) -> None:
    params = SamplingParams(max_tokens=1, temperature=0.0, logprobs=1)
    ask = Ask("it", (0, 3), params)
    expected = Answer([ChoiceAnswer([1], [TokenLogprobs(-0.5, ((1, -0.5),))], "length")])
    check(ask, expected, expected, Logits(TIED))
    with pytest.raises((AssertionError, IndexError)):
        check(ask, expected, Answer([ChoiceAnswer([1], got, "length")]), Logits(TIED))
