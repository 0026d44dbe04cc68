"""Same request, same tokens: from a prefill and a decode worker, from one alone, in any company.

Real engines, gRPC and gloo. Everything is compared with a lone engine's answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from fakes_asks import golden_asks, mixed_asks
from fakes_golden import Answer, Ask, check
from fakes_real_house import PairHouse, num_cachable_tokens, pair_house
from fakes_solo import Solo

from text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def pair() -> Iterator[PairHouse]:
    with pair_house() as made:
        yield made


def check_all(asks: Sequence[Ask], answers: Sequence[Answer], solo: Solo) -> None:
    for ask, answer in zip(asks, answers, strict=True):
        check(ask, solo.answer(ask), answer, solo.next_logits)


def test_a_pair_answers_as_a_lone_engine(pair: PairHouse, solo: Solo, tokenizer: Tokenizer) -> None:
    asks = golden_asks(tokenizer)
    answers = pair.house.complete(pair.split, asks)
    check_all(asks, answers, solo)
    timings = [answer.usage.timings for answer in answers if answer.usage]
    served_by = {(t.prefill_worker, t.decode_worker) for t in timings}
    assert served_by == {("prefill-0", "decode-0")}


def test_combined_mode_answers_as_a_lone_engine(
    pair: PairHouse, solo: Solo, tokenizer: Tokenizer
) -> None:
    asks = golden_asks(tokenizer)
    answers = pair.house.complete(pair.combined, asks, cache_salt="combined")
    check_all(asks, answers, solo)
    assert all(a.usage and a.usage.cached_tokens == 0 for a in answers)


def test_thirty_two_at_once_answer_as_one_alone(
    pair: PairHouse, solo: Solo, tokenizer: Tokenizer
) -> None:
    asks = mixed_asks(tokenizer, 32)
    check_all(asks, pair.house.complete(pair.split, asks, cache_salt="crowd"), solo)


def test_prefixes_in_both_caches_change_no_token(
    pair: PairHouse, solo: Solo, tokenizer: Tokenizer
) -> None:
    asks = golden_asks(tokenizer)
    for front in (pair.split, pair.combined, pair.split):
        answers = pair.house.complete(front, asks, cache_salt="again")
        check_all(asks, answers, solo)
    for ask, answer in zip(asks, answers, strict=True):
        assert answer.usage is not None
        assert answer.usage.cached_tokens == num_cachable_tokens(len(ask.token_ids))


def test_nothing_is_held_in_the_end(pair: PairHouse) -> None:
    pair.check_whole()
