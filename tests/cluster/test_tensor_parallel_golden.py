"""A worker of several ranks in combined mode answers as a lone engine, rounding apart."""

from __future__ import annotations

import pytest
from fakes_asks import golden_asks
from fakes_golden import check
from fakes_real_house import describe, real_house, settings, until_whole
from fakes_solo import Solo

from core.request import Phase
from state.memory import MemoryStore
from text.tokenizer import Tokenizer

# Nothing here is about deadlines: ranks take turns on a busy machine
GROUP = ("router.mode=combined", "parallel.step_timeout_s=120")


@pytest.mark.parametrize(
    "size", [pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow)]
)
def test_a_group_answers_as_a_lone_engine(solo: Solo, tokenizer: Tokenizer, size: int) -> None:
    """The default model has 9 query and 3 KV heads; forks of a prompt are copied on every rank."""
    config, store = settings(*GROUP, f"parallel.tensor_parallel_size={size}"), MemoryStore()
    asks = golden_asks(tokenizer)
    assert any(ask.n > 1 for ask in asks)
    with real_house() as house:
        member = house.worker(config, Phase.DECODE, store)
        front = house.front(config, store)
        house.loop.run(front.until_connected(1))
        answers = house.complete(front, asks)
        info = house.loop.run(describe(member.address))
        house.loop.run(until_whole(member.address))
    assert info.tensor_parallel_size == size
    for ask, answer in zip(asks, answers, strict=True):
        check(ask, solo.answer(ask), answer, solo.next_logits)
