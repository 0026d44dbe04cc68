"""Log-probabilities of prompts: each position once and in order, however it is computed."""

from __future__ import annotations

import pytest
from fakes_engine import logprob, reference_output
from fakes_pair import Pair, attempt

from core.request import Attempt
from engine.plan import MAX_SCORED


def prompt(length: int, start: int = 10) -> list[int]:
    return [start + (i * 7) % 900 for i in range(length)]


def check_scores(pair: Pair, transfer_id: str, token_ids: list[int]) -> None:
    """All tokens but the first, each after all that stand before it."""
    found: dict[int, float] = {}
    for event in pair.scores[transfer_id]:
        assert event.start == len(found) + 1, "in order, and none twice"
        found |= {event.start + i: p.logprob for i, p in enumerate(event.logprobs)}
    expected = [logprob(token_ids[:i], token_ids[i]) for i in range(1, len(token_ids))]
    assert list(found.values()) == expected


def submit(pair: Pair, request: Attempt, combined: bool) -> None:
    pair.submit_to_decode(request) if combined else pair.submit(request)


@pytest.mark.parametrize("combined", [False, True])
@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 8, 9, 17, 40])
def test_every_token_but_the_first_is_scored(length: int, combined: bool) -> None:
    pair = Pair(block_size=4, chunk_tokens=8)
    submit(pair, attempt("a", prompt(length), max_tokens=5, prompt_logprobs=0), combined)
    pair.run()
    check_scores(pair, "a", prompt(length))
    assert pair.output["a", 0] == reference_output(prompt(length), 5, 7, 0)
    pair.check_whole()


@pytest.mark.parametrize("combined", [False, True])
def test_what_is_cached_is_computed_again(combined: bool) -> None:
    pair = Pair()
    submit(pair, attempt("before", prompt(19), max_tokens=3), combined)
    pair.run()
    submit(pair, attempt("scored", prompt(19), max_tokens=3, prompt_logprobs=0), combined)
    pair.run()
    check_scores(pair, "scored", prompt(19))
    assert pair.started["scored"].num_cached_tokens == 0
    submit(pair, attempt("after", prompt(19), max_tokens=3), combined)
    pair.run()
    assert pair.started["after"].num_cached_tokens == 16 and not pair.scores["after"]
    pair.check_whole()


@pytest.mark.parametrize("combined", [False, True])
def test_choices_share_the_scores_of_their_prompt(combined: bool) -> None:
    pair = Pair(max_num_seqs=2)
    request = attempt("a", prompt(13), max_tokens=4, choices=(0, 1, 2), prompt_logprobs=2)
    submit(pair, request, combined)
    pair.run()
    check_scores(pair, "a", prompt(13))
    for choice in range(3):
        assert pair.output["a", choice] == reference_output(prompt(13), 4, 7, choice)
    pair.check_whole()


def test_a_step_scores_only_so_many_tokens_and_goes_on_with_others() -> None:
    pair = Pair(chunk_tokens=256, prefill_blocks=256, decode_blocks=256, max_model_len=1000)
    for name in ("a", "b"):
        pair.submit(attempt(name, prompt(150), max_tokens=2, prompt_logprobs=0))
    pair.submit(attempt("plain", prompt(100, start=5), max_tokens=2))
    pair.run()
    for name in ("a", "b"):
        check_scores(pair, name, prompt(150))
        assert max(len(event.logprobs) for event in pair.scores[name]) <= MAX_SCORED
    assert pair.output["plain", 0] == reference_output(prompt(100, start=5), 2, 7, 0)
    pair.check_whole()


def test_a_resumed_attempt_says_nothing_of_its_prompt_again() -> None:
    whole = reference_output(prompt(13), 8, 7, 0)
    pair = Pair()
    pair.submit(
        attempt("a", prompt(13), max_tokens=8, emitted=whole[:3], prompt_logprobs=1),
    )
    pair.run()
    assert pair.output["a", 0] == whole[3:] and not pair.scores["a"]
    pair.check_whole()


def test_preemption_neither_loses_nor_repeats_scores_after_the_first_token() -> None:
    pair = Pair(decode_blocks=14, growth_tokens=0, caching=False)
    for i in range(3):
        request = attempt(f"{i}", prompt(9, start=20 + i), max_tokens=16, prompt_logprobs=0)
        pair.submit_to_decode(request)
    pair.run()
    assert pair.decode.load().num_preemptions > 0
    for i in range(3):
        check_scores(pair, f"{i}", prompt(9, start=20 + i))
        assert pair.output[f"{i}", 0] == reference_output(prompt(9, start=20 + i), 16, 7, 0)
    pair.check_whole()
