"""One run: a whole house, its undisturbed answers, faults under load, peace, and the books.

start -> every ask answered undisturbed -> load alone for a while -> memory noted
  -> load and faults -> no more faults: all targets serve again -> every ask once more
  -> load ends -> memory, books -> stop -> what is left of any process
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.chaos.asks import Ask, Visit, visits
from bench.chaos.house import House
from bench.chaos.load import Clients, undisturbed
from bench.chaos.plan import PlannedFault
from bench.chaos.verdict import Evidence, FaultDone, Outcome
from bench.client import ServerError
from bench.progress import Progress
from core.clock import Clock

_WARM_AT_MOST = 4
_LOOK_AGAIN_S = 0.25


@dataclass(frozen=True, slots=True)
class ChaosPlan:
    """What is done to the house, and what it is asked meanwhile."""

    asks: tuple[Ask, ...]
    faults: tuple[PlannedFault, ...]
    seed: int
    duration_s: float
    num_clients: int = 8
    warm_s: float = 20.0
    """Load without faults, at least, before memory is noted: caches and allocators fill."""
    warm_visits: int = 120
    """And so many visits, where that takes no longer than `_WARM_AT_MOST` times that."""


async def run_chaos(house: House, plan: ChaosPlan, clock: Clock, progress: Progress) -> Evidence:
    """Runs the plan on a house that has started. Stops the house, whatever happens."""
    try:
        evidence = await _evidence(house, plan, clock, progress)
    finally:
        progress("stopping the house")
        orphans = await house.stop()
    return replace(evidence, orphans=tuple(orphans))


async def _evidence(house: House, plan: ChaosPlan, clock: Clock, progress: Progress) -> Evidence:
    progress(f"{len(plan.asks)} answers without any fault")
    expected = await undisturbed(house.doors[0], plan.asks, clock, at_once=plan.num_clients)
    clients = Clients(house, expected, clock, progress)
    over = asyncio.Event()
    asking = asyncio.create_task(
        clients.keep_asking(visits(plan.asks, seed=plan.seed), plan.num_clients, over)
    )
    try:
        await _warm(plan, clients, clock)
        before = house.memory()
        faults = await _do_all(house, plan, clock, progress)
        over.set()
        progress("the faults are over: the last answers")
        await asking
        clients.outcomes += await _once_more(clients, plan.asks)
        after = house.memory()
        progress("the books")
        books = await house.books()
    finally:
        asking.cancel()
        await asyncio.wait({asking})
        clients.close()
    return Evidence(
        outcomes=tuple(clients.outcomes),
        faults=faults,
        faults_within=dict(house.faults_within()),
        books=books,
        memory_before=before,
        memory_after=after,
        crashes=tuple(house.crashes()),
    )


async def _warm(plan: ChaosPlan, clients: Clients, clock: Clock) -> None:
    """A router's memory grows for its first hundred answers or so, and hardly any more then."""
    began_s = clock.now()
    await asyncio.sleep(plan.warm_s)
    while (
        len(clients.outcomes) < plan.warm_visits
        and clock.now() < began_s + _WARM_AT_MOST * plan.warm_s
    ):
        await asyncio.sleep(_LOOK_AGAIN_S)


async def _do_all(
    house: House, plan: ChaosPlan, clock: Clock, progress: Progress
) -> tuple[FaultDone, ...]:
    """Each fault at its time, however far those before it are; returns when all is well again."""
    began_s = clock.now()
    doing: list[asyncio.Task[FaultDone]] = []
    async with asyncio.TaskGroup() as group:
        for fault in plan.faults:
            await asyncio.sleep(max(0.0, began_s + fault.at_s - clock.now()))
            progress(f"fault: {fault}")
            doing.append(group.create_task(_do(house, fault, clock, progress)))
        await asyncio.sleep(max(0.0, began_s + plan.duration_s - clock.now()))
    return tuple(task.result() for task in doing)


async def _do(house: House, fault: PlannedFault, clock: Clock, progress: Progress) -> FaultDone:
    at_s, over_s, problem = clock.now(), None, ""
    try:
        at_s = await house.carry_out(fault)
        over_s = clock.now()
    except ServerError as error:
        problem = str(error)
        progress(f"not healed: {fault}: {problem}")
    return FaultDone(fault.kind.value, fault.target, at_s, over_s, problem)


async def _once_more(clients: Clients, asks: Sequence[Ask]) -> list[Outcome]:
    """Every ask of a house that is whole again: what a fault has spoiled for good shows here."""
    number = len(clients.outcomes)
    last = [Visit(number + i, ask, salt="") for i, ask in enumerate(asks)]
    return list(await asyncio.gather(*map(clients.serve, last)))
