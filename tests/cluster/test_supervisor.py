"""What happens between a replica's death and its next life."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from cluster.shell import End, Ending, Progress, Ready
from cluster.supervisor import Supervisor
from core.clock import MonotonicClock
from core.errors import CapacityError, TandemError, UnavailableError

DEADLINE_S = 20.0


class Life:
    """A replica that does what the test says, and remembers what was done to it."""

    def __init__(self, number: int, refusal: TandemError | None = None) -> None:
        self.number = number
        self.refusal = refusal
        self.death = asyncio.Event()
        self.drained: Ending | None = None
        self.done: list[str] = []
        self.stop_error: TandemError | None = None

    async def start(self, progress: Progress) -> Ready:
        progress("loading")
        if self.refusal is not None:
            raise self.refusal
        return Ready("w", self.number, f"life:{self.number}")

    async def wait_ended(self) -> End:
        await self.death.wait()
        return End("killed", self.drained)

    async def drain(self, timeout_s: float) -> None:
        self.done.append("drain")

    async def stop(self, grace_s: float) -> None:
        self.done.append("stop")
        if self.stop_error is not None:
            raise self.stop_error

    async def discard(self) -> None:
        self.done.append("discard")


class House:
    """A supervisor over scripted lives."""

    def __init__(self, *, max_restarts: int = -1, refusals: tuple[int, ...] = ()) -> None:
        self.lives: list[Life] = []
        self.changes: asyncio.Queue[Ready | None] = asyncio.Queue()
        self._refusals = refusals
        self.keeper = Supervisor(
            "w",
            self._make,
            max_restarts=max_restarts,
            clock=MonotonicClock(),
            on_change=lambda name, ready: self.changes.put_nowait(ready),
        )

    def _make(self) -> Life:
        number = len(self.lives)
        refusal = CapacityError("too big") if number in self._refusals else None
        self.lives.append(Life(number, refusal))
        return self.lives[-1]

    async def end(self) -> None:
        await self.keeper.stop(1.0)
        await self.keeper.discard()

    async def start(self) -> Ready:
        ready = await self.keeper.start(lambda line: None)
        assert await self.changes.get() == ready
        return ready


def run(check: Callable[[], Awaitable[None]]) -> None:
    async def body() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await check()

    asyncio.run(body())


def test_a_dead_replica_is_discarded_and_replaced() -> None:
    async def check() -> None:
        house = House()
        await house.start()
        house.lives[0].death.set()
        assert await house.changes.get() is None
        assert await house.changes.get() == Ready("w", 1, "life:1")
        assert house.lives[0].done == ["discard"]
        await house.end()

    run(check)


def test_a_first_start_that_is_refused_is_the_callers_to_judge() -> None:
    async def check() -> None:
        house = House(refusals=(0,))
        with pytest.raises(CapacityError, match="too big"):
            await house.keeper.start(lambda line: None)
        await house.end()
        assert house.lives[0].done == ["discard"]

    run(check)


def test_a_next_life_that_does_not_start_is_tried_again() -> None:
    async def check() -> None:
        house = House(refusals=(1,))
        await house.start()
        house.lives[0].death.set()
        assert await house.changes.get() is None
        assert await house.changes.get() is None
        assert await house.changes.get() == Ready("w", 2, "life:2")
        assert house.lives[1].done == ["discard"]
        await house.end()

    run(check)


def test_used_up_restarts_end_the_keeping_and_say_so() -> None:
    async def check() -> None:
        house = House(max_restarts=0)
        await house.start()
        assert not house.keeper.ended.is_set()
        house.lives[0].death.set()
        await house.keeper.ended.wait()
        assert len(house.lives) == 1
        assert house.lives[0].done == ["discard"]

    run(check)


def test_a_drained_replica_is_not_started_again_and_nothing_has_failed() -> None:
    async def check() -> None:
        house = House(max_restarts=0)
        await house.start()
        house.lives[0].drained = Ending.RETIRED
        house.lives[0].death.set()
        assert await house.changes.get() is None
        await house.end()
        assert house.lives[0].done == ["discard"]
        assert len(house.lives) == 1
        assert not house.keeper.ended.is_set()

    run(check)


def test_a_drained_replica_that_is_wanted_again_costs_no_restart() -> None:
    async def check() -> None:
        house = House(max_restarts=0)
        await house.start()
        for number in range(3):
            house.lives[number].drained = Ending.REPLACED
            house.lives[number].death.set()
            assert await house.changes.get() is None
            assert await house.changes.get() == Ready("w", number + 1, f"life:{number + 1}")
        await house.end()

    run(check)


def test_stopping_drains_first_and_never_restarts() -> None:
    async def check() -> None:
        house = House()
        await house.start()
        await house.keeper.drain(1.0)
        house.lives[0].death.set()
        await house.end()
        await house.end()
        assert house.lives[0].done == ["drain", "stop", "discard"]
        assert len(house.lives) == 1

    run(check)


def test_a_replica_that_dies_while_it_is_stopped_is_still_discarded() -> None:
    async def check() -> None:
        house = House()
        await house.start()
        house.lives[0].stop_error = UnavailableError("gone", reason="no_worker")
        await house.end()
        assert house.lives[0].done == ["stop", "discard"]

    run(check)


def test_one_that_cannot_be_placed_does_not_hold_up_another() -> None:
    async def check() -> None:
        stuck, fine = House(refusals=tuple(range(1, 50))), House()
        await stuck.start()
        await fine.start()
        stuck.lives[0].death.set()
        fine.lives[0].death.set()
        assert await fine.changes.get() is None
        assert await fine.changes.get() == Ready("w", 1, "life:1")
        await stuck.end()
        await fine.end()
        assert all("discard" in life.done for life in stuck.lives)

    run(check)
