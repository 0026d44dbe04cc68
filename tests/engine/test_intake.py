"""Limits, tombstones and deadlines."""

from __future__ import annotations

import pytest
from fakes_pair import attempt
from hypothesis import given
from hypothesis import strategies as st

from engine.intake import Deadlines, Limits, Tombstones, refuse

LIMITS = Limits(max_model_len=100, vocab_size=50, num_blocks=20, block_size=4, max_num_waiting=2)


@pytest.mark.parametrize(
    ("prompt_len", "max_tokens", "waiting", "code"),
    [
        (60, 20, 0, None),
        (60, 21, 0, "context_length_exceeded"),
        (90, 11, 0, "context_length_exceeded"),
        (10, 5, 2, "saturated"),
    ],
)
def test_an_attempt_is_refused_by_exactly_the_limit_it_breaks(
    prompt_len: int, max_tokens: int, waiting: int, code: str | None
) -> None:
    request = attempt("a", [1] * prompt_len, max_tokens=max_tokens)
    refusal = refuse(request, LIMITS, num_waiting=waiting)
    assert (refusal.code if refusal else None) == code
    assert refusal is None or refusal.retryable == (code == "saturated")


def test_a_token_outside_the_vocabulary_is_named() -> None:
    refusal = refuse(attempt("a", [1, 50, 2]), LIMITS, num_waiting=0)
    assert refusal is not None
    assert "50" in refusal.message


def test_a_resumed_attempt_is_measured_by_prompt_and_max_tokens_alone() -> None:
    request = attempt("a", [1] * 60, max_tokens=20, emitted=[2] * 19)
    assert refuse(request, LIMITS, num_waiting=0) is None


def test_tombstones_are_bounded_and_forget_the_oldest() -> None:
    tombstones = Tombstones()
    for i in range(70_000):
        tombstones.add(str(i))
    assert "69999" in tombstones
    assert "0" not in tombstones


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["set", "discard", "expire"]),
            st.sampled_from("abcd"),
            st.floats(0, 100),
        )
    )
)
def test_deadlines_behave_like_a_dictionary_searched_slowly(
    steps: list[tuple[str, str, float]],
) -> None:
    deadlines, model = Deadlines(), dict[str, float]()
    for action, key, time in steps:
        if action == "set":
            deadlines.set(key, time)
            model[key] = time
        elif action == "discard":
            deadlines.discard(key)
            model.pop(key, None)
        else:
            due = {k for k, at in model.items() if at <= time}
            assert set(deadlines.pop_expired(time)) == due
            model = {k: at for k, at in model.items() if k not in due}
        assert deadlines.next() == min(model.values(), default=None)
