"""Many clients at once, some of whom leave before their answer is complete."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from fakes_golden import Answer, Ask
from fakes_real_house import Front


@dataclass(frozen=True)
class Visit:
    """One client. `patience` is how much the whole crowd may be told before this one leaves."""

    ask: Ask
    cache_salt: str
    patience: int | None = None


class Crowd:
    """Clients of one router, `num_inside` of them at a time.

    Impatient clients count what anybody receives, so they leave at every stage of their requests:
    queued, in prefill, in transfer, in decode. They speak HTTP and just close the connection; the
    others take their answers over gRPC.
    """

    def __init__(self, front: Front, num_inside: int) -> None:
        self._front = front
        self._door = asyncio.Semaphore(num_inside)
        self._told = 0
        self._leaving: dict[asyncio.Event, int] = {}

    async def serve(self, visits: Sequence[Visit]) -> list[Answer | None]:
        """The answers of all who stayed."""
        return await asyncio.gather(*(self._visit(visit) for visit in visits))

    async def _visit(self, visit: Visit) -> Answer | None:
        async with self._door:
            if visit.patience is None:
                return await self._front.complete(visit.ask, visit.cache_salt, self._tell)
            await self._until_told(visit.patience, self._read(visit))
            return None

    async def _until_told(self, patience: int, work: Coroutine[Any, Any, None]) -> None:
        """Runs `work`, and cancels it once that much has been told."""
        enough = asyncio.Event()
        self._leaving[enough] = self._told + patience
        tasks = {asyncio.create_task(work), asyncio.create_task(enough.wait())}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            for task in tasks:
                with contextlib.suppress(asyncio.CancelledError):
                    await task
            del self._leaving[enough]

    async def _read(self, visit: Visit) -> None:
        body = visit.ask.to_json(self._front.model, visit.cache_salt) | {"stream": True}
        async with self._front.http.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    self._tell()

    def _tell(self) -> None:
        self._told += 1
        for enough, limit in self._leaving.items():
            if self._told >= limit:
                enough.set()
