"""Who gives or takes running answers dies in the middle of it: they are computed anew, bit for bit.

The one that dies is a process of its own, stuck in a message of the move by a fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes_case_process import case_process, shared_state
from fakes_cases import CaseHouse, case_house, settings
from fakes_loop_thread import DEADLINE_S
from fakes_moving_house import (
    ASKS,
    NUM_CHOICES,
    all_run,
    begin,
    check_same,
    complete,
    moved,
    new_decode_worker,
    running,
    step_until,
)
from fakes_process import Child

from core import metric_names as names
from core.request import Phase
from engine.role import Move

BY_HAND = "decode-by-hand"
PACE = "step:delay=0.1"
"""Of the process, whose steps can't be held: slow enough for all answers to run at once."""


@pytest.fixture
def shared(redis_url: str) -> tuple[str, ...]:
    return shared_state(redis_url)


@pytest.fixture
def house(model: Path, shared: tuple[str, ...]) -> Iterator[CaseHouse]:
    """One P, and one D in this process."""
    with case_house(settings(model, *shared, "router.no_worker_timeout_s=60")) as made:
        yield made


def process(
    model: Path, shared: tuple[str, ...], spec: str
) -> contextlib.AbstractContextManager[Child]:
    return case_process(Phase.DECODE, BY_HAND, model, [*shared, f"faults.spec={spec}"])


def test_an_heir_that_dies_while_it_pulls_costs_a_computation(
    house: CaseHouse, model: Path, shared: tuple[str, ...]
) -> None:
    victim = house.d

    async def test(stack: contextlib.ExitStack) -> None:
        expected = await complete(house, "undisturbed")
        asking = await begin(house, "moved", victim)
        await step_until(victim, all_run)
        heir = process(model, shared, "kv_recv:delay=100000")
        child = await asyncio.to_thread(stack.enter_context, heir)
        await house.until(lambda: house.blocks(BY_HAND, "free") > 0)
        victim.posted.clear()
        draining = asyncio.create_task(victim.drain(DEADLINE_S))
        await victim.posted.until(Move, len(ASKS))
        victim.steps.release()
        await house.until(lambda: house.blocks(BY_HAND, "importing") > 0)
        await house.until(lambda: house.blocks("decode-0", "running") == 0)
        await asyncio.to_thread(child.process.kill)
        await new_decode_worker(house)
        check_same(await asking, expected)
        assert await draining == 0, "the leases have ended with the link"
        assert await moved(house, "failed") == NUM_CHOICES
        await house.stop(victim)
        await house.check_whole()

    with contextlib.ExitStack() as stack:
        house.run(test(stack))


@pytest.mark.parametrize("drains", [True, False])
def test_a_worker_that_dies_with_running_answers_costs_a_computation(
    model: Path, shared: tuple[str, ...], drains: bool
) -> None:
    """Whether it is killed in the middle of a move, or of its steps."""
    spec = f"{PACE},kv_pack:delay=100000"

    async def test(house: CaseHouse, victim: Child) -> None:
        asking = asyncio.create_task(complete(house, "moved"))
        await house.until(lambda: running(house, BY_HAND) == NUM_CHOICES)
        heir = await new_decode_worker(house)
        if drains:
            victim.process.send_signal(signal.SIGTERM)
            await house.until(lambda: house.blocks(heir.member.worker_id, "importing") > 0)
        await asyncio.to_thread(victim.process.kill)
        answers = await asking
        assert await house.metric(names.RETRIES_TOTAL) > 0
        assert (await moved(house, "failed") > 0) is drains
        check_same(answers, await complete(house, "undisturbed"))
        await house.check_whole()

    with (
        process(model, shared, spec) as victim,
        case_house(settings(model, *shared), decode=0) as house,
    ):
        house.run(house.router.until_connected(2))
        house.run(test(house, victim))
