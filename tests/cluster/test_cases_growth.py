"""Sequences that together outgrow the pool: all of them finish, with the tokens of one alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes_cases import (
    CaseHouse,
    Json,
    case_house,
    check_same,
    settings,
    some_tokens,
    tokens_of,
)

from core import metric_names as names
from engine.role import Submit

BLOCK = 16
NUM_BLOCKS = 64
NUM_REQUESTS = 8
PROMPT_TOKENS = 2 * BLOCK
BLOCKS_EACH = 16
MAX_TOKENS = BLOCKS_EACH * BLOCK - PROMPT_TOKENS


@pytest.fixture(scope="module")
def alone(model: Path) -> list[Json]:
    """The answers of a house with room for all, asked for one after the other."""
    with case_house(settings(model)) as house:
        return [house.run(ask(house, i, "alone")) for i in range(NUM_REQUESTS)]


@pytest.fixture(scope="module", params=[0, 64, 256], ids=lambda growth: f"foreseen-{growth}")
def house(model: Path, request: pytest.FixtureRequest) -> Iterator[CaseHouse]:
    """D's admission foresees none, some, or all of the growth."""
    overrides = ["model.max_model_len=512", f"cache.num_blocks={NUM_BLOCKS}"]
    growth = f"scheduler.admission_growth_tokens={request.param}"
    with case_house(settings(model, *overrides, growth)) as made:
        yield made


async def ask(house: CaseHouse, number: int, salt: str) -> Json:
    prompt = some_tokens(PROMPT_TOKENS, seed=number)
    return await house.ask(prompt, max_tokens=MAX_TOKENS, cache_salt=salt, ignore_eos=True)


async def preemptions(house: CaseHouse) -> float:
    await house.until(lambda: house.held("decode-0") == 0)
    return await house.metric(names.WORKER_PREEMPTIONS_TOTAL, role="decode")


def test_eight_that_need_sixteen_blocks_each_share_sixty_four(
    house: CaseHouse, alone: list[Json], request: pytest.FixtureRequest
) -> None:
    """Case 22. Their growth is twice the pool: D admits fewer, or takes blocks back."""
    assert NUM_REQUESTS * BLOCKS_EACH == 2 * NUM_BLOCKS
    foresees_all = request.node.callspec.params["house"] >= MAX_TOKENS

    async def test() -> None:
        house.d.posted.clear()
        house.d.steps.hold()  # until all of them are there
        asking = asyncio.gather(*(ask(house, i, "crowd") for i in range(NUM_REQUESTS)))
        await house.d.posted.until(Submit, NUM_REQUESTS)
        house.d.steps.release()
        answers = await asking
        assert (await preemptions(house) == 0) == foresees_all
        for answer, expected in zip(answers, alone, strict=True):
            assert len(tokens_of(answer)[0]) == MAX_TOKENS
            assert answer["choices"][0]["finish_reason"] == "length"
            check_same(answer, expected)

    house.run(test())


def test_choices_of_one_prompt_outgrow_the_pool_as_well(house: CaseHouse) -> None:
    """Case 22. Eight choices fork off one prompt; each draws its own tokens."""
    fields = {"n": NUM_REQUESTS, "temperature": 1.0, "seed": 5, "ignore_eos": True}

    async def test() -> None:
        prompt = some_tokens(PROMPT_TOKENS, seed=99)
        crowded = await house.ask(prompt, max_tokens=MAX_TOKENS, **fields)
        assert await preemptions(house) > 0
        few = await house.ask(prompt, max_tokens=BLOCK, **fields)
        assert [tokens[:BLOCK] for tokens in tokens_of(crowded)] == tokens_of(few)
        assert all(len(tokens) == MAX_TOKENS for tokens in tokens_of(crowded))
        assert len({tuple(tokens) for tokens in tokens_of(crowded)}) == NUM_REQUESTS

    house.run(test())
