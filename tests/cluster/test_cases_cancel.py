"""Clients that leave: what they asked for stops within a chunk, and gives everything back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from fakes_byte_model import MAX_MODEL_LEN, write_byte_model
from fakes_cases import (
    CaseHouse,
    ask,
    case_house,
    check_same,
    crowd,
    settings,
    some_tokens,
    tokens_of,
)

from engine.role import Cancel, Submit

NUM_CLIENTS = 300
NUM_STEPS = 40
"""Of P, when they leave: some have an answer by then or wait for D, most have not been begun."""
CHUNK = 512


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaseHouse]:
    model = write_byte_model(tmp_path_factory.mktemp("byte-model"))
    overrides = (
        f"scheduler.prefill_chunk_tokens={CHUNK}",
        "router.request_timeout_s=10000",
        "router.dispatch_ahead_tokens=10000000",  # none waits at the router
    )
    with case_house(settings(model, *overrides)) as made:
        yield made


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_the_first_token_costs_one_chunk_more(
    house: CaseHouse, stream: bool
) -> None:
    """Case 4. Its 8k prompt is in its third chunk when it leaves; the fourth is not computed."""
    prompt = some_tokens(MAX_MODEL_LEN - 100, seed=40 + stream)
    steps, posted = house.p.steps, house.p.posted

    async def test() -> None:
        computed = len(steps.num_tokens)
        posted.clear()
        steps.hold(after=2)
        async with house.asking(prompt, max_tokens=50, stream=stream):
            await steps.until_held()
        await posted.until(Cancel)
        steps.release()
        await house.until(lambda: house.held("prefill-0") == house.held("decode-0") == 0)
        await house.check_whole()
        assert steps.num_tokens[computed:] == [CHUNK] * 3

    house.run(test())


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_does_not_hold_up_the_next(house: CaseHouse, stream: bool) -> None:
    """Case 4. Behind the chunk under way comes the other's prompt, not the next chunk."""
    prompt = some_tokens(MAX_MODEL_LEN - 100, seed=50 + stream)
    steps, posted = house.p.steps, house.p.posted

    async def test() -> None:
        computed = len(steps.num_tokens)
        posted.clear()
        steps.hold(after=1)
        async with house.asking(prompt, max_tokens=50, stream=stream):
            await steps.until_held()
            behind = asyncio.create_task(house.ask(some_tokens(20, seed=60 + stream), max_tokens=2))
            await posted.until(Submit, 2)
        await posted.until(Cancel)
        steps.release()
        await behind
        assert steps.num_tokens[computed:] == [CHUNK, CHUNK, 20]

    house.run(test())


def test_a_client_that_waits_in_the_queue_and_leaves_costs_nothing(house: CaseHouse) -> None:
    """Case 4. Its prompt was never begun."""
    steps, posted = house.p.steps, house.p.posted

    async def test() -> None:
        computed = len(steps.num_tokens)
        posted.clear()
        steps.hold()
        first = asyncio.create_task(house.ask(some_tokens(CHUNK, seed=70), max_tokens=2))
        await steps.until_held()
        async with house.asking(some_tokens(4 * CHUNK, seed=71), max_tokens=50):
            await posted.until(Submit, 2)
        await posted.until(Cancel)
        steps.release()
        await first
        await house.check_whole()
        assert steps.num_tokens[computed:] == [CHUNK]

    house.run(test())


def test_pools_return_to_their_baseline_when_hundreds_of_clients_leave(house: CaseHouse) -> None:
    """Case 2. Four times 300; nothing new is scheduled in between, and nobody asks the workers."""
    steps, posted = house.p.steps, house.p.posted

    async def leave(wave: int) -> None:
        posted.clear()
        steps.hold(after=NUM_STEPS)
        async with crowd(house.router) as clients:
            prompts = (some_tokens(1500, seed=wave * NUM_CLIENTS + i) for i in range(NUM_CLIENTS))
            asking = [asyncio.create_task(ask(clients, p, max_tokens=100)) for p in prompts]
            await posted.until(Submit, NUM_CLIENTS)
            await steps.until_held()
            await house.until(lambda: house.held("prefill-0") > 0)
            for task in asking:
                task.cancel()
            await asyncio.wait(asking)
            steps.release()
        await house.until(lambda: house.held("prefill-0") == house.held("decode-0") == 0)

    async def test() -> None:
        for wave in range(4):
            await leave(wave)
            for worker in ("prefill-0", "decode-0"):
                assert house.blocks(worker, "cached", "free") == 1024
        probe = some_tokens(1600, seed=9999)
        answer = await house.ask(probe, max_tokens=20)
        alone = await house.ask(probe, max_tokens=20, cache_salt="alone")
        check_same(answer, alone)
        assert len(tokens_of(answer)[0]) == 20

    house.run(test())
