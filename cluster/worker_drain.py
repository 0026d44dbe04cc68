"""The gate a draining worker closes: it leaves the cluster and finishes what it has."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import partial

from cluster.shell import Ending
from engine.grammar_gate import GrammarGate
from engine.step_loop import StepLoop


class DrainGate:
    """Open until the first drain.

    `withdraw` takes the worker out of the cluster's membership. `on_retired` is told once an
    operator's drain is over: the worker's life ends then, and how it is meant to go on.
    """

    def __init__(
        self,
        step_loop: StepLoop,
        withdraw: Callable[[], Awaitable[None]],
        on_retired: Callable[[Ending], None],
        grammars: GrammarGate,
    ) -> None:
        self._step_loop = step_loop
        self._grammars = grammars
        self._withdraw = withdraw
        self._on_retired = on_retired
        self._retirements: set[asyncio.Task[int]] = set()
        self.draining = False

    async def drain(self, timeout_s: float) -> int:
        """Waits until no attempt and no lease is left; returns how many are when time is up."""
        first, self.draining = not self.draining, True
        if first:
            await self._withdraw()
        idle = asyncio.Event()
        loop = asyncio.get_running_loop()
        done = partial(loop.call_soon_threadsafe, idle.set)
        self._grammars.when_free(partial(self._step_loop.when_idle, done))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(idle.wait(), timeout_s)
        # The step under way may be the first of the only attempt, which isn't counted yet.
        return 0 if idle.is_set() else max(1, self._step_loop.num_unfinished)

    async def retire(self, timeout_s: float, ending: Ending) -> int:
        """`drain`, and then the worker's life ends. Goes on when whoever asked for it leaves."""
        retirement = asyncio.create_task(self._retire(timeout_s, ending))
        self._retirements.add(retirement)
        retirement.add_done_callback(self._retirements.discard)
        return await asyncio.shield(retirement)

    def stop(self) -> None:
        """Nobody waits any longer: the worker stops. Idempotent."""
        for retirement in self._retirements:
            retirement.cancel()

    async def _retire(self, timeout_s: float, ending: Ending) -> int:
        num_remaining = await self.drain(timeout_s)
        self._on_retired(ending)
        return num_remaining
