"""An alarm ends waits when it is set, and at their deadlines, on a single timer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import TypeVarTuple

from core.alarm import SLACK_S, Alarm

LONG_S = 60.0

Arguments = TypeVarTuple("Arguments")


def test_a_wait_ends_at_once_when_the_alarm_was_set_before() -> None:
    async def run() -> tuple[bool, bool]:
        alarm = Alarm()
        alarm.set()
        return await alarm.wait(LONG_S), await alarm.wait(0.0)

    assert asyncio.run(run()) == (True, False)


def test_a_wait_ends_when_the_alarm_is_set() -> None:
    async def run() -> bool:
        alarm = Alarm()
        asyncio.get_running_loop().call_soon(alarm.set)
        return await alarm.wait(LONG_S)

    assert asyncio.run(run())


def test_every_wait_has_its_own_deadline_however_long_the_one_before_was() -> None:
    async def run() -> list[bool]:
        alarm, results = Alarm(), []
        loop = asyncio.get_running_loop()
        for timeout_s in (LONG_S, 0.001, 0.002):
            if timeout_s == LONG_S:
                loop.call_soon(alarm.set)
            began = loop.time()
            results.append(await alarm.wait(timeout_s))
            assert results[-1] or loop.time() - began >= timeout_s
        return results

    assert asyncio.run(run()) == [True, False, False]


def test_a_timer_that_an_earlier_wait_left_ends_no_later_one() -> None:
    async def run() -> bool:
        alarm = Alarm()
        loop = asyncio.get_running_loop()
        loop.call_soon(alarm.set)
        await alarm.wait(0.005)
        loop.call_later(0.02, alarm.set)
        return await alarm.wait(LONG_S)

    assert asyncio.run(run())


def test_a_cancelled_wait_leaves_the_alarm_usable() -> None:
    async def run() -> bool:
        alarm = Alarm()
        waiting = asyncio.create_task(alarm.wait(LONG_S))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        alarm.set()
        try:
            return await alarm.wait(LONG_S)
        finally:
            alarm.close()

    assert asyncio.run(run())


class CountingLoop(asyncio.SelectorEventLoop):
    """Counts the timers that are armed on it."""

    num_timers = 0

    def call_at(
        self,
        when: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        self.num_timers += 1
        return super().call_at(when, callback, *args, context=context)


def test_a_deadline_that_wanders_a_little_arms_no_timer_anew() -> None:
    async def run(loop: CountingLoop) -> list[int]:
        alarm, counts = Alarm(), []
        for timeout_s in (LONG_S, LONG_S - SLACK_S / 2, LONG_S - 1.0):
            loop.call_soon(alarm.set)
            await alarm.wait(timeout_s)
            counts.append(loop.num_timers)
        alarm.close()
        return counts

    loop = CountingLoop()
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        assert runner.run(run(loop)) == [1, 1, 2]
