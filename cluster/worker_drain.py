"""The gate a draining worker closes: it leaves the cluster and finishes what it has."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from engine.step_loop import StepLoop


class DrainGate:
    """Open until the first drain. `withdraw` takes the worker out of the cluster's membership."""

    def __init__(self, step_loop: StepLoop, withdraw: Callable[[], Awaitable[None]]) -> None:
        self._step_loop = step_loop
        self._withdraw = withdraw
        self.draining = False

    async def drain(self, timeout_s: float) -> int:
        """Waits until no attempt and no lease is left; returns how many are when time is up."""
        first, self.draining = not self.draining, True
        if first:
            await self._withdraw()
        idle = asyncio.Event()
        loop = asyncio.get_running_loop()
        self._step_loop.when_idle(lambda: loop.call_soon_threadsafe(idle.set))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(idle.wait(), timeout_s)
        return 0 if idle.is_set() else self._step_loop.num_unfinished
