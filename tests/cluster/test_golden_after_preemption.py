"""A decode worker without room for all drops sequences and computes them again: same tokens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fakes_asks import golden_asks, mirrored
from fakes_golden import check
from fakes_real_house import PairHouse, describe, pair_house
from fakes_solo import Solo

from text.tokenizer import Tokenizer

TINY = (
    "model.max_model_len=256",
    "cache.num_blocks=20",
    "scheduler.admission_growth_tokens=0",
)
"""A quarter of what the requests grow to, and nothing kept back for growth: whenever the pool is
full, and with so many waiting it always is, a sequence can only go on in another's place."""


@pytest.fixture(scope="module")
def pair() -> Iterator[PairHouse]:
    with pair_house(*TINY) as made:
        yield made


def num_preemptions(pair: PairHouse) -> int:
    info = pair.house.loop.run(describe(pair.workers[1].address))
    return info.load.num_preemptions


@pytest.mark.parametrize("mode", ["split", "combined"])
def test_preempted_requests_answer_as_a_lone_engine(
    pair: PairHouse, solo: Solo, tokenizer: Tokenizer, mode: str
) -> None:
    before = num_preemptions(pair)
    asks = mirrored(golden_asks(tokenizer))
    front = pair.split if mode == "split" else pair.combined
    answers = pair.house.complete(front, asks)
    for ask, answer in zip(asks, answers, strict=True):
        check(ask, solo.answer(ask), answer, solo.next_logits)
    assert num_preemptions(pair) > before
    pair.check_whole()
