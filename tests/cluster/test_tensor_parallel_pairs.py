"""CASES 23: P and D of several ranks each. KV is re-sharded, and tokens are those of one rank.

Every pair of {1, 2, 3, 4}, for a model with fewer KV heads than some groups have ranks, and for one
whose heads no group divides evenly.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from fakes_asks import FILTERED, GREEDY, WARM, golden_asks
from fakes_byte_model import write_byte_model
from fakes_cases import some_tokens
from fakes_golden import Answer, Ask, check
from fakes_real_house import (
    BLOCK_SIZE,
    CHUNK_TOKENS,
    RealHouse,
    describe,
    real_house,
    settings,
    until_whole,
)
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
PAIRS = [pair for pair in itertools.product(SIZES, SIZES) if pair != (1, 1)]
NUM_TIMES = 2
"""A prompt is computed anew each time, beside others: whoever reads what is not there yet is
unlikely to be lucky every time."""


def usually(*usual: tuple[int, int]) -> pytest.MarkDecorator:
    """These pairs are always tested, the others where there is time."""
    return pytest.mark.parametrize(
        ("prefill_ranks", "decode_ranks"),
        [pytest.param(*pair, marks=[] if pair in usual else pytest.mark.slow) for pair in PAIRS],
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """8 query and 2 KV heads: from three ranks on, some hold copies."""
    return f"model.model={write_byte_model(tmp_path_factory.mktemp('model'), num_heads=8)}"


@pytest.fixture(scope="module")
def lone(model: str) -> Solo:
    return Solo(load_card(resolve(ModelConfig(model=model.partition("=")[2]))), model)


def random_asks() -> list[Ask]:
    """Prompts around the ends of blocks and chunks, each way of choosing tokens, and forks."""
    edges = (BLOCK_SIZE, CHUNK_TOKENS, 2 * CHUNK_TOKENS)
    lengths = (5, 96, 300, *(edge + i for edge in edges for i in (-1, 0, 1)))
    kinds = (GREEDY, FILTERED, WARM)
    return [
        Ask(
            f"{length} tokens",
            tuple(some_tokens(length, seed=i)),
            replace(kinds[i % 3], max_tokens=12, ignore_eos=True, logprobs=2),
            n=1 + (i % 4 == 3),
        )
        for i, length in enumerate(lengths)
    ]


@usually((1, 2), (4, 1), (3, 4))
def test_a_pair_of_groups_answers_as_a_lone_engine(
    lone: Solo, model: str, prefill_ranks: int, decode_ranks: int
) -> None:
    answers = answers_of_pair(random_asks(), prefill_ranks, decode_ranks, NUM_TIMES, model)
    check_all(lone, random_asks(), answers)


@usually()
def test_so_it_does_with_the_default_model(
    solo: Solo, tokenizer: Tokenizer, prefill_ranks: int, decode_ranks: int
) -> None:
    """3 KV heads: one of two ranks holds two of them, and four ranks hold a copy of one."""
    asks = golden_asks(tokenizer)
    check_all(solo, asks, answers_of_pair(asks, prefill_ranks, decode_ranks, 2))


def check_all(solo: Solo, asks: Sequence[Ask], answers: Sequence[Answer]) -> None:
    for ask, answer in zip(asks, answers, strict=True):
        check(ask, solo.answer(ask), answer, solo.next_logits)
        assert answer.num_attempts == 1


def answers_of_pair(
    asks: Sequence[Ask], prefill_ranks: int, decode_ranks: int, num_times: int, *overrides: str
) -> list[Answer]:
    """All at once, so many times; each time with the same bits."""
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
        first, *others = [house.complete(front, asks, str(i)) for i in range(num_times)]
        sizes = [num_ranks_of(house, member.address) for member in members]
        for member in members:
            house.loop.run(until_whole(member.address))
    assert sizes == [prefill_ranks, decode_ranks]
    for other in others:
        for ask, answer, again in zip(asks, first, other, strict=True):
            assert again.choices == answer.choices, ask.name
    return first


def num_ranks_of(house: RealHouse, address: str) -> int:
    """As the worker says."""
    size: int = house.loop.run(describe(address)).tensor_parallel_size
    return size
