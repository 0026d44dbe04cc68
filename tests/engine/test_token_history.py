"""What penalties look at is kept token by token, and equals a fresh count."""

from __future__ import annotations

from collections import Counter

import pytest
from fakes_pair import attempt
from hypothesis import given
from hypothesis import strategies as st

from core.request import Attempt, SamplingParams
from engine.sequence import Sequence
from engine.token_history import TokenHistory
from kv_cache.block_hash import root_hash

TOKENS = st.lists(st.integers(0, 30), max_size=60)


def seen(history: TokenHistory) -> dict[int, int]:
    return dict(zip(history.token_ids.tolist(), history.counts.tolist(), strict=True))


def counted(prompt: list[int], output: list[int]) -> dict[int, int]:
    return dict.fromkeys(prompt, 0) | Counter(output)


@given(TOKENS, TOKENS)
def test_appending_equals_counting(prompt: list[int], output: list[int]) -> None:
    history = TokenHistory(prompt)
    for token_id in output:
        history.append(token_id)
    assert seen(history) == seen(TokenHistory(prompt, output)) == counted(prompt, output)


def test_a_copy_goes_its_own_way() -> None:
    history = TokenHistory([1, 2], [2])
    copy = history.copy()
    copy.append(2)
    copy.append(9)
    assert seen(history) == {1: 0, 2: 1}
    assert seen(copy) == {1: 0, 2: 2, 9: 1}


def penalised(token_ids: list[int], num_prompt_tokens: int) -> Attempt:
    plain = attempt("a", token_ids[:num_prompt_tokens], emitted=token_ids[num_prompt_tokens:])
    return Attempt(
        request_id="r",
        transfer_id="a",
        model="",
        token_ids=plain.token_ids,
        num_prompt_tokens=num_prompt_tokens,
        choices=(0,),
        sampling=SamplingParams(max_tokens=9, presence_penalty=1.0),
        deadline_s=1.0,
    )


@pytest.mark.parametrize("asked_early", [False, True])
def test_a_sequences_history_follows_its_output(asked_early: bool) -> None:
    sequence = Sequence(penalised([5, 6, 5, 7], 2), (0,), arrival=0.0, root=root_hash("k"))
    if asked_early:
        sequence.history()
    sequence.append(6)
    fork = sequence.fork(1)
    fork.append(8)
    history, forked = sequence.history(), fork.history()
    assert history is not None and forked is not None
    assert seen(history) == counted([5, 6], [5, 7, 6])
    assert seen(forked) == counted([5, 6], [5, 7, 6, 8])


def test_nothing_is_counted_where_nothing_is_penalised() -> None:
    sequence = Sequence(attempt("a", [1, 2]), (0,), arrival=0.0, root=root_hash("k"))
    assert sequence.history() is None
