"""P and D of several ranks each: handed over, re-sharded, and the same tokens as from one rank."""

from __future__ import annotations

import pytest
from fakes_asks import golden_asks
from fakes_golden import check
from fakes_real_house import RealHouse, describe, real_house, settings, until_whole
from fakes_solo import Solo

from core.request import Phase
from state.memory import MemoryStore
from text.tokenizer import Tokenizer

# Nothing here is about deadlines: ranks take turns on a busy machine
PATIENT = ("parallel.step_timeout_s=120", "kv_transfer.verify=true")


@pytest.mark.parametrize(("prefill_ranks", "decode_ranks"), [(2, 1), (1, 2), (2, 2)])
def test_a_pair_of_groups_answers_as_a_lone_engine(
    solo: Solo, tokenizer: Tokenizer, prefill_ranks: int, decode_ranks: int
) -> None:
    """The default model has 3 KV heads: one of two ranks holds two of them."""
    check_pair(solo, tokenizer, prefill_ranks, decode_ranks)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prefill_ranks", "decode_ranks"),
    [(p, d) for p in (1, 2, 3, 4) for d in (1, 2, 3, 4) if max(p, d) > 2],
)
def test_so_do_larger_ones(
    solo: Solo, tokenizer: Tokenizer, prefill_ranks: int, decode_ranks: int
) -> None:
    """Four ranks share three KV heads: two of them hold copies of one."""
    check_pair(solo, tokenizer, prefill_ranks, decode_ranks)


def check_pair(solo: Solo, tokenizer: Tokenizer, prefill_ranks: int, decode_ranks: int) -> None:
    asks = golden_asks(tokenizer)
    with real_house() as house:
        config = settings(
            *PATIENT,
            f"parallel.prefill_tensor_parallel_size={prefill_ranks}",
            f"parallel.decode_tensor_parallel_size={decode_ranks}",
        )
        store = MemoryStore()
        members = [house.worker(config, role, store) for role in (Phase.PREFILL, Phase.DECODE)]
        front = house.front(config, store)
        house.loop.run(front.until_connected(2))
        answers = house.complete(front, asks)
        sizes = [num_ranks_of(house, member.address) for member in members]
        for member in members:
            house.loop.run(until_whole(member.address))
    assert sizes == [prefill_ranks, decode_ranks]
    for ask, answer in zip(asks, answers, strict=True):
        check(ask, solo.answer(ask), answer, solo.next_logits)
        assert answer.num_attempts == 1


def num_ranks_of(house: RealHouse, address: str) -> int:
    """How many ranks the worker says it has."""
    size: int = house.loop.run(describe(address)).tensor_parallel_size
    return size
