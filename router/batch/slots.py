"""Places for batches' requests, given out as the house has room: first come, first served."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from core.request import Phase
from router.batch.pace import HouseView, num_allowed
from router.door import Door
from state.tenants import PriorityClass

LOOK_AGAIN_S = 0.05
"""While there is no room; reports of workers come about as often."""


class Slots:
    """Shared by all batches of this router. Lives on one event loop."""

    def __init__(self, door: Door, *, max_concurrency: int, max_num_seqs: int) -> None:
        """`max_num_seqs` is how many sequences one worker runs at once."""
        self._door = door
        self._max_concurrency = max_concurrency
        self._max_num_seqs = max_num_seqs
        self._turn = asyncio.Lock()
        self._freed = asyncio.Event()
        self.num_used = 0

    async def acquire(self) -> None:
        """Takes a place; `release` it."""
        async with self._turn:
            while self.num_used >= num_allowed(self._view(), self._max_concurrency):
                self._freed.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_AGAIN_S):
                        await self._freed.wait()
            self.num_used += 1

    def release(self) -> None:
        self.num_used -= 1
        self._freed.set()

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        await self.acquire()
        try:
            yield
        finally:
            self.release()

    def _view(self) -> HouseView:
        views = [view for view in self._door.fleet.views() if view.role is Phase.DECODE]
        ready = [view for view in views if view.load.ready and not view.draining]
        waiting = self._door.hall.line.num_waiting
        num_blocks = sum(sum(view.load.kv_blocks.values()) for view in ready)
        free = sum(view.free_blocks for view in ready)
        return HouseView(
            num_seats=self._max_num_seqs * len(ready),
            num_sequences=sum(view.num_sequences for view in ready),
            num_waiting_at_workers=sum(view.load.num_waiting for view in ready),
            num_online_waiting=sum(
                count for each, count in waiting.items() if each is not PriorityClass.BATCH
            ),
            num_batch=self.num_used,
            free_kv=free / num_blocks if num_blocks else 1.0,
        )
