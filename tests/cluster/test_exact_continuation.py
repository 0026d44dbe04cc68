"""A decode worker without room for all: what gives way, there or elsewhere, goes on bit for bit."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes_cases import CaseHouse, case_house, settings
from fakes_golden import Answer
from fakes_loop_thread import DEADLINE_S
from fakes_moving_house import (
    ASKS,
    NUM_CHOICES,
    begin,
    check_same,
    complete,
    moved,
    new_decode_worker,
    step_until,
)
from fakes_observed_worker import ObservedWorker

from engine.role import Move

NUM_BLOCKS = 60
"""A third of what all the answers need together."""
GREEDY_ADMISSION = "scheduler.admission_growth_tokens=0"


@pytest.fixture(scope="module")
def house(model: Path) -> Iterator[CaseHouse]:
    small = (f"cache.num_blocks={NUM_BLOCKS}", "model.max_model_len=512", GREEDY_ADMISSION)
    with case_house(settings(model, *small)) as made:
        yield made


def num_preemptions(worker: ObservedWorker) -> int:
    return worker.parts.step_loop.load().num_preemptions


async def one_by_one(house: CaseHouse, salt: str) -> list[Answer]:
    return [(await complete(house, salt, [asked]))[0] for asked in ASKS]


def test_preempted_choices_go_on_to_the_bit(house: CaseHouse) -> None:
    async def test() -> None:
        expected = await one_by_one(house, "each alone")
        assert not num_preemptions(house.d)
        asking = await begin(house, "all together", house.d)
        house.d.steps.release()
        check_same(await asking, expected)
        assert num_preemptions(house.d) > 0
        await house.check_whole()

    house.run(test())


def test_a_drain_among_preemptions_moves_what_has_kv_and_gives_back_what_has_none(
    house: CaseHouse,
) -> None:
    victim = house.d

    async def test() -> None:
        expected = await one_by_one(house, "each alone again")
        before = num_preemptions(victim)
        asking = await begin(house, "moved", victim)
        await step_until(victim, lambda load: load.num_preemptions > before)
        await new_decode_worker(house)
        draining = asyncio.create_task(victim.drain(DEADLINE_S))
        await victim.posted.until(Move)
        victim.steps.release()
        check_same(await asking, expected)
        assert await draining == 0
        assert 0 < await moved(house, "pulled") < NUM_CHOICES
        assert await moved(house, "given_back") > 0
        await house.stop(victim)
        await house.check_whole()

    house.run(test())
