"""P and D of several ranks each: handed over, re-sharded, and the same tokens as from one rank."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from fakes_asks import FILTERED, GREEDY, golden_asks
from fakes_byte_model import write_byte_model
from fakes_cases import some_tokens
from fakes_golden import Ask, check
from fakes_real_house import RealHouse, describe, real_house, settings, until_whole
from fakes_solo import Solo

from core.config import ModelConfig
from core.request import Phase
from state.memory import MemoryStore
from text.hub import resolve
from text.model_card import load_card
from text.tokenizer import Tokenizer

# Nothing here is about deadlines: ranks take turns on a busy machine
PATIENT = ("parallel.step_timeout_s=120", "kv_transfer.verify=true")
SIZES = (1, 2, 3, 4)
ALL = [pair for pair in itertools.product(SIZES, SIZES) if pair != (1, 1)]
USUAL = [(2, 1), (1, 2)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """8 query and 2 KV heads: from three ranks on, some hold copies."""
    return f"model.model={write_byte_model(tmp_path_factory.mktemp('model'), num_heads=8)}"


@pytest.fixture(scope="module")
def lone(model: str) -> Solo:
    return Solo(load_card(resolve(ModelConfig(model=model.partition("=")[2]))), model)


def random_asks() -> list[Ask]:
    """Prompts of one chunk and of several, with a tail of a block and without."""
    return [
        Ask(
            f"random {i}",
            tuple(some_tokens(length, seed=i)),
            replace(FILTERED if i % 2 else GREEDY, max_tokens=12, ignore_eos=True),
            n=1 + (i == 3),
        )
        for i, length in enumerate((5, 64, 96, 170, 300))
    ]


@pytest.mark.parametrize(
    ("prefill_ranks", "decode_ranks"),
    [pytest.param(*pair, marks=[] if pair in USUAL else pytest.mark.slow) for pair in ALL],
)
def test_a_pair_of_groups_answers_as_a_lone_engine(
    lone: Solo, model: str, prefill_ranks: int, decode_ranks: int
) -> None:
    check_pair(lone, random_asks(), prefill_ranks, decode_ranks, model)


@pytest.mark.parametrize(
    ("prefill_ranks", "decode_ranks"),
    [pytest.param(*pair, marks=[] if pair == (2, 2) else pytest.mark.slow) for pair in ALL],
)
def test_so_it_does_with_the_default_model(
    solo: Solo, tokenizer: Tokenizer, prefill_ranks: int, decode_ranks: int
) -> None:
    """3 KV heads: one of two ranks holds two of them, and four ranks hold a copy of one."""
    check_pair(solo, golden_asks(tokenizer), prefill_ranks, decode_ranks)


def check_pair(
    solo: Solo, asks: Sequence[Ask], prefill_ranks: int, decode_ranks: int, *overrides: str
) -> None:
    config = settings(
        *PATIENT,
        *overrides,
        f"parallel.prefill_tensor_parallel_size={prefill_ranks}",
        f"parallel.decode_tensor_parallel_size={decode_ranks}",
    )
    store = MemoryStore()
    with real_house() as house:
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
    """As the worker says."""
    size: int = house.loop.run(describe(address)).tensor_parallel_size
    return size
