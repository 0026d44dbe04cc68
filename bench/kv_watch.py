"""How much allocated KV holds nothing, sampled from a server's metrics while it is loaded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from bench.exposition import gauge
from core.metric_names import WORKER_KV_UNFILLED_SLOTS, WORKER_RUNNING

# Rare enough that reading the page costs the server under test less than one percent.
_PERIOD_S = 0.5


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class KvWaste:
    """Unfilled token slots (imports apart) per running sequence of a worker, at its worst."""

    num_samples: int
    max_slots_per_sequence: float


Waste = dict[str, KvWaste]
"""By the server's name."""

ReadPage = Callable[[], Awaitable[str]]
"""Reads a server's metrics page."""


async def watched(work: Awaitable[T], pages: Mapping[str, ReadPage]) -> tuple[T, Waste]:
    """Does the work, and watches the named servers for as long as it lasts."""
    over = asyncio.Event()
    watches = {
        name: asyncio.create_task(watch_kv(page, over, period_s=_PERIOD_S))
        for name, page in pages.items()
    }
    try:
        result = await work
    finally:
        over.set()
        waste = {name: await watch for name, watch in watches.items()}
    return result, waste


async def watch_kv(read_page: ReadPage, until: asyncio.Event, *, period_s: float) -> KvWaste:
    """Samples until the event is set."""
    seen: list[float] = []
    while not until.is_set():
        seen += slots_per_sequence(await read_page())
        try:
            async with asyncio.timeout(period_s):
                await until.wait()
        except TimeoutError:
            continue
    return KvWaste(num_samples=len(seen), max_slots_per_sequence=max(seen, default=0.0))


def slots_per_sequence(page: str) -> list[float]:
    """Unfilled slots over running sequences, of each worker that runs any."""
    unfilled: Mapping[str, float] = gauge(page, WORKER_KV_UNFILLED_SLOTS)
    running: Mapping[str, float] = gauge(page, WORKER_RUNNING)
    return [
        unfilled[worker] / count
        for worker, count in running.items()
        if count > 0 and worker in unfilled
    ]
