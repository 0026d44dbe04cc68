"""Sends a workload: a fixed number of requests at once, or each at its own time.

    closed loop   N senders; each sends its next request when its last has ended
    open loop     every request is sent at its arrival time, however many are under way

Warm-up requests go first and are thrown away; the run's clock starts after them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Protocol

from bench.client import PreparedRequest
from bench.record import RequestRecord
from core.clock import Clock

Send = Callable[[PreparedRequest], Awaitable[RequestRecord]]


class Timer(Protocol):
    """A clock that can be waited on."""

    def now(self) -> float:
        """Seconds since an arbitrary start."""
        ...

    async def until(self, at_s: float) -> None:
        """Returns once `now()` is at least `at_s`."""
        ...


class LoopTimer:
    """A clock's time, waited on through the running event loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now(self) -> float:
        return self._clock.now()

    async def until(self, at_s: float) -> None:
        while (left_s := at_s - self._clock.now()) > 0:
            await asyncio.sleep(left_s)


async def run_closed(
    requests: Iterable[PreparedRequest],
    send: Send,
    *,
    concurrency: int,
    timer: Timer,
    duration_s: float | None = None,
) -> list[RequestRecord]:
    """Keeps `concurrency` requests under way; after `duration_s` no new ones begin."""
    until_s = None if duration_s is None else timer.now() + duration_s
    records: list[RequestRecord] = []

    async def sender(queue: Iterator[PreparedRequest]) -> None:
        while until_s is None or timer.now() < until_s:
            request = next(queue, None)
            if request is None:
                return
            records.append(await send(request))

    queue = iter(requests)
    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(sender(queue))
    return sorted(records, key=lambda record: record.index)


async def run_open(
    requests: Iterable[PreparedRequest], send: Send, *, timer: Timer
) -> list[RequestRecord]:
    """Sends each request at its arrival time, counted from now."""
    start_s = timer.now()
    tasks: list[asyncio.Task[RequestRecord]] = []

    async def one(request: PreparedRequest) -> RequestRecord:
        return await send(request)

    async with asyncio.TaskGroup() as group:
        for request in requests:
            await timer.until(start_s + request.arrival_s)
            tasks.append(group.create_task(one(request)))
    return [task.result() for task in tasks]


async def run_groups(
    requests: Iterable[PreparedRequest], send: Send, *, group_size: int, timer: Timer
) -> list[RequestRecord]:
    """Static batching: a group starts when the last of the group before has ended."""
    records: list[RequestRecord] = []
    queue = iter(requests)
    while group := [request for _, request in zip(range(group_size), queue, strict=False)]:
        records += await run_closed(group, send, concurrency=group_size, timer=timer)
    return records
