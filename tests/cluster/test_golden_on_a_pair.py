"""Same request, same tokens: from a prefill and a decode worker, from one alone, in any company.

Real engines, gRPC and gloo. Everything is compared with a lone engine's answers.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import pytest
from fakes_asks import golden_asks, mixed_asks
from fakes_crowd import Crowd, Visit
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


def check_full_hits(asks: Sequence[Ask], answers: Sequence[Answer]) -> None:
    """P found everything there is to find."""
    for ask, answer in zip(asks, answers, strict=True):
        assert answer.usage is not None
        assert answer.usage.cached_tokens == num_cachable_tokens(len(ask.token_ids))


def some_leave(asks: Sequence[Ask], *, num_visits: int) -> list[Visit]:
    """The asks over and over, each time with a cache of its own; half of the clients leave."""
    chance = random.Random(19)
    return [
        Visit(
            asks[i % len(asks)],
            cache_salt=f"round {i // len(asks)}",
            patience=chance.randrange(60) if chance.random() < 0.5 else None,
        )
        for i in range(num_visits)
    ]


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
    check_full_hits(asks, answers)


def test_after_a_hundred_requests_with_cancels_cached_prompts_answer_the_same(
    pair: PairHouse, solo: Solo, tokenizer: Tokenizer
) -> None:
    visits = some_leave(mixed_asks(tokenizer, 32), num_visits=100)

    async def serve() -> list[Answer | None]:
        return await Crowd(pair.split, num_inside=24).serve(visits)

    answers = pair.house.loop.run(serve())
    stayed = [(v.ask, a) for v, a in zip(visits, answers, strict=True) if a is not None]
    assert len(stayed) == sum(visit.patience is None for visit in visits)
    check_all([ask for ask, _ in stayed], [answer for _, answer in stayed], solo)
    pair.check_whole()
    asks = golden_asks(tokenizer)
    check_all(asks, pair.house.complete(pair.combined, asks, cache_salt="after"), solo)
    for _ in range(2):
        answers_now = pair.house.complete(pair.split, asks, cache_salt="after")
        check_all(asks, answers_now, solo)
    check_full_hits(asks, answers_now)


def test_nothing_is_held_in_the_end(pair: PairHouse) -> None:
    pair.check_whole()
