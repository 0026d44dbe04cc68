"""A decode worker drains under load: what runs there goes on elsewhere with its KV, bit for bit.

The steps of who drains are held where the test wants them; answers are compared with the same
requests undisturbed, whose KV lies under another salt, so that nothing of it is found cached.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes_cases import CaseHouse, case_house, settings
from fakes_golden import Answer
from fakes_loop_thread import DEADLINE_S
from fakes_moving_house import (
    ASKS,
    NUM_CHOICES,
    all_run,
    begin,
    check_same,
    complete,
    computed,
    moved,
    new_decode_worker,
    step_until,
)
from fakes_observed_worker import ObservedWorker

from engine.role import Cancel, Move, Submit


@pytest.fixture(scope="module")
def house(model: Path, request: pytest.FixtureRequest) -> Iterator[CaseHouse]:
    kv_dtype = getattr(request, "param", "auto")
    config = settings(model, f"cache.kv_cache_dtype={kv_dtype}", "kv_transfer.verify=true")
    with case_house(config) as made:
        yield made


async def held_in_the_middle(
    house: CaseHouse, worker: ObservedWorker
) -> asyncio.Task[list[Answer]]:
    """All answers under way, and the worker, the only one, held before a step of all of them."""
    asking = await begin(house, f"moved from {worker.member.worker_id}", worker)
    await step_until(worker, all_run)
    return asking


@pytest.mark.parametrize("house", ["auto", "int8", "fp8"], indirect=True)
def test_a_drained_worker_hands_everything_over_and_nothing_is_computed_twice(
    house: CaseHouse,
) -> None:
    victim = house.d

    async def test() -> None:
        before = computed(house.p), computed(victim)
        expected = await complete(house, "undisturbed")
        undisturbed = computed(house.p) - before[0], computed(victim) - before[1]
        before = computed(house.p), computed(victim)
        pulled = await moved(house, "pulled")

        asking = await held_in_the_middle(house, victim)
        heir = await new_decode_worker(house)
        draining = asyncio.create_task(victim.drain(DEADLINE_S))
        await victim.posted.until(Move, len(ASKS))
        victim.steps.release()
        check_same(await asking, expected)
        assert await draining == 0, "every lease was acknowledged"
        assert await moved(house, "pulled") - pulled == NUM_CHOICES
        assert computed(house.p) - before[0] == undisturbed[0], "no prompt was computed again"
        assert computed(victim, heir) - before[1] == undisturbed[1], "and no token"
        await house.stop(victim)
        await house.check_whole()

    house.run(test())


def test_without_another_worker_it_runs_on_until_one_comes(house: CaseHouse) -> None:
    victim = house.d

    async def test() -> None:
        expected = await complete(house, "alone")
        asking = await held_in_the_middle(house, victim)
        draining = asyncio.create_task(victim.drain(DEADLINE_S))
        await house.until(lambda: len(house.router.server.fleet.views()) == 1)
        victim.steps.hold(after=20)
        await victim.steps.until_held()
        assert not victim.posted.count(Move)
        heir = await new_decode_worker(house)
        await victim.posted.until(Move, len(ASKS))
        victim.steps.release()
        check_same(await asking, expected)
        assert await draining == 0
        assert heir.posted.count(Submit) == NUM_CHOICES
        await house.stop(victim)
        await house.check_whole()

    house.run(test())


def test_answers_move_twice_in_a_row(house: CaseHouse) -> None:
    first = house.d

    async def test() -> None:
        expected = await complete(house, "in one place")
        pulled = await moved(house, "pulled")
        asking = await held_in_the_middle(house, first)
        second = await new_decode_worker(house)
        draining = asyncio.create_task(first.drain(DEADLINE_S))
        await first.posted.until(Move, len(ASKS))
        second.steps.hold()
        first.steps.release()
        await step_until(second, all_run)
        third = await new_decode_worker(house)
        draining_too = asyncio.create_task(second.drain(DEADLINE_S))
        await second.posted.until(Move, NUM_CHOICES)
        second.steps.release()
        check_same(await asking, expected)
        assert await draining == await draining_too == 0
        assert await moved(house, "pulled") - pulled == 2 * NUM_CHOICES
        assert third.steps.num_tokens
        for worker in (first, second):
            await house.stop(worker)
        await house.check_whole()

    house.run(test())


def test_clients_that_leave_while_their_answers_move_leave_nothing(house: CaseHouse) -> None:
    victim = house.d

    async def test() -> None:
        asking = await held_in_the_middle(house, victim)
        heir = await new_decode_worker(house)
        go_on = threading.Event()
        heir.parts.step_loop.call(go_on.wait)
        draining = asyncio.create_task(victim.drain(DEADLINE_S))
        await victim.posted.until(Move, len(ASKS))
        victim.steps.release()
        await heir.posted.until(Submit, NUM_CHOICES)
        await house.until(lambda: house.blocks(victim.member.worker_id, "leased") > 0)
        asking.cancel()
        await asyncio.wait({asking})
        assert await draining == 0, "the leases end with the requests"
        await heir.posted.until(Cancel, NUM_CHOICES)
        go_on.set()
        await house.stop(victim)
        await house.check_whole()

    house.run(test())


def test_without_any_other_worker_a_drain_waits_for_the_answers(house: CaseHouse) -> None:
    """The last test of a house: nobody is left to decode."""
    victim = house.d

    async def test() -> None:
        expected = await complete(house, "before the drain")
        asking = await held_in_the_middle(house, victim)
        draining = asyncio.create_task(victim.drain(DEADLINE_S))
        victim.steps.release()
        check_same(await asking, expected)
        assert await draining == 0
        assert not victim.posted.count(Move)

    house.run(test())
