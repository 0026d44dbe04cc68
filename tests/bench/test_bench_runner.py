"""When requests are sent: closed loop, open loop, groups. Time moves by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from bench.client import PreparedRequest
from bench.record import RequestRecord
from bench.runner import LoopTimer, run_closed, run_groups, run_open
from core.clock import MonotonicClock


class ManualTimer:
    """Jumps to whatever time is waited for."""

    def __init__(self) -> None:
        self.time_s = 50.0

    def now(self) -> float:
        return self.time_s

    async def until(self, at_s: float) -> None:
        await asyncio.sleep(0)  # what is due by now begins
        self.time_s = max(self.time_s, at_s)


class FakeSender:
    """Notes what is under way; each request takes as many turns of the loop as its index says."""

    def __init__(self, timer: ManualTimer, *, takes_s: float = 0.0) -> None:
        self._timer = timer
        self._takes_s = takes_s
        self.running: set[int] = set()
        self.max_running = 0
        self.seen_with: dict[int, set[int]] = {}

    async def send(self, request: PreparedRequest) -> RequestRecord:
        started_s = self._timer.now()
        self.seen_with[request.index] = set(self.running)
        self.running.add(request.index)
        self.max_running = max(self.max_running, len(self.running))
        for _ in range(1 + request.index % 3):
            await asyncio.sleep(0)
        self._timer.time_s += self._takes_s
        self.running.remove(request.index)
        return RequestRecord(request.index, started_s, self._timer.now())


def requests(count: int, *, gap_s: float = 0.0) -> list[PreparedRequest]:
    return [PreparedRequest(index, index * gap_s, b"") for index in range(count)]


def test_a_closed_loop_keeps_exactly_so_many_requests_under_way() -> None:
    timer = ManualTimer()
    sender = FakeSender(timer)
    records = asyncio.run(run_closed(requests(20), sender.send, concurrency=4, timer=timer))
    assert [record.index for record in records] == list(range(20))
    assert sender.max_running == 4
    assert all(len(sender.seen_with[index]) == 3 for index in range(4, 20))


def test_a_closed_loop_begins_nothing_after_its_time_but_finishes_what_it_began() -> None:
    timer = ManualTimer()
    sender = FakeSender(timer, takes_s=1.0)

    def endless() -> Iterator[PreparedRequest]:
        yield from requests(1000)

    records = asyncio.run(
        run_closed(endless(), sender.send, concurrency=2, timer=timer, duration_s=10.0)
    )
    assert all(record.started_s < 60.0 for record in records)
    assert len(records) in (10, 11)


def test_an_open_loop_sends_on_time_whatever_is_still_under_way() -> None:
    async def run() -> list[RequestRecord]:
        timer = ManualTimer()
        first_may_end = asyncio.Event()

        async def send(request: PreparedRequest) -> RequestRecord:
            started_s = timer.now()
            if request.index == 0:
                await first_may_end.wait()
            if request.index == 4:
                first_may_end.set()
            return RequestRecord(request.index, started_s, timer.now())

        return await run_open(requests(5, gap_s=2.0), send, timer=timer)

    records = asyncio.run(run())
    assert [record.started_s for record in records] == [50.0, 52.0, 54.0, 56.0, 58.0]
    assert records[0].finished_s == 58.0


def test_a_group_starts_only_when_the_last_of_the_group_before_has_ended() -> None:
    timer = ManualTimer()
    sender = FakeSender(timer)
    records = asyncio.run(run_groups(requests(10), sender.send, group_size=4, timer=timer))
    assert [record.index for record in records] == list(range(10))
    for index, others in sender.seen_with.items():
        assert {other // 4 for other in others} <= {index // 4}
    assert sender.max_running == 4


def test_the_loops_timer_waits_until_the_clock_says_so() -> None:
    async def run() -> float:
        timer = LoopTimer(MonotonicClock())
        at_s = timer.now() + 0.002
        await timer.until(at_s)
        return timer.now() - at_s

    assert asyncio.run(run()) >= 0
