"""Keeps one replica alive: notices its end, throws away what is left, starts the next life.

    start    the first life; its failure is the caller's to judge
    ready    wait for the end: a failure, or an operator's drain
    ended    discard > decide > wait out the delay > start   (a start that fails is a failure)
    retired  drained for good: nothing follows, and nobody is to be told
    given up the restarts are used up: `ended` is set
    stopped  by `stop` and `discard`, from any state

Each replica has a supervisor of its own, so one that cannot be placed delays nobody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable

from cluster.replica import MakeReplica, Replica
from cluster.restart import GiveUp, History, Restart, Retire, after_drain, after_failure
from cluster.shell import End, Progress, Ready
from core.clock import Clock
from core.errors import TandemError

log = logging.getLogger(__name__)


class Supervisor:
    """The keeper of one replica, called `name`.

    `on_change` is told who serves under that name now, None while nobody does.
    """

    def __init__(
        self,
        name: str,
        make: MakeReplica,
        *,
        max_restarts: int,
        clock: Clock,
        on_change: Callable[[str, Ready | None], None],
    ) -> None:
        self.name = name
        self.ended = asyncio.Event()
        self._make = make
        self._max_restarts = max_restarts
        self._clock = clock
        self._on_change = on_change
        self._history = History()
        self._replica: Replica | None = None
        self._ready_at: float | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def start(self, progress: Progress) -> Ready:
        """Starts the first life and keeps it from then on. Raises TandemError if it won't start."""
        ready = await self._launch(progress)
        self._keeping = asyncio.create_task(self._keep(), name=f"keep {self.name}")
        return ready

    async def drain(self, timeout_s: float) -> None:
        """Ends the keeping, and lets the present life finish what it has."""
        await self._let_go()
        if self._replica is not None and self._ready_at is not None:
            await _shielded(self.name, "drain", self._replica.drain(timeout_s))

    async def stop(self, grace_s: float) -> None:
        """Ends the present life in order; `discard` comes next. Idempotent."""
        await self._let_go()
        if self._replica is not None and self._ready_at is not None:
            await _shielded(self.name, "stop", self._replica.stop(grace_s))

    async def discard(self) -> None:
        """Gives back what the last life held. Idempotent."""
        replica, self._replica, self._ready_at = self._replica, None, None
        if replica is not None:
            await replica.discard()

    async def _launch(self, progress: Progress) -> Ready:
        self._replica = self._make()
        ready = await self._replica.start(progress)
        self._ready_at = self._clock.now()
        self._on_change(self.name, ready)
        return ready

    async def _keep(self) -> None:
        while isinstance(decision := await self._one_life(), Restart):
            self._history = decision.history
            await self._relaunch(decision.delay_s)
        if isinstance(decision, GiveUp):
            log.error("%s is given up after %d restarts", self.name, decision.num_restarts)
            self.ended.set()

    async def _one_life(self) -> Restart | Retire | GiveUp:
        """Waits for the end of the present life, throws its rest away, and decides what follows."""
        assert self._replica is not None
        end, ready_s = End("it did not start"), 0.0
        if self._ready_at is not None:
            end = await self._replica.wait_ended()
            ready_s = self._clock.now() - self._ready_at
        self._on_change(self.name, None)
        level = logging.WARNING if end.drained is None else logging.INFO
        log.log(level, "%s ended: %s", self.name, end.reason)
        await self.discard()
        if end.drained is not None:
            return after_drain(self._history, end.drained)
        return after_failure(self._history, ready_s=ready_s, max_restarts=self._max_restarts)

    async def _relaunch(self, delay_s: float) -> None:
        if delay_s:
            log.info("%s is started again in %g s", self.name, delay_s)
            await asyncio.sleep(delay_s)
        try:
            ready = await self._launch(lambda line: log.info("%s: %s", self.name, line))
            log.info("%s serves again, as process %d", self.name, ready.pid)
        except TandemError as error:
            log.warning("%s did not start: %s", self.name, error.message)

    async def _let_go(self) -> None:
        keeping, self._keeping = self._keeping, None
        if keeping is not None:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping


async def _shielded(name: str, what: str, work: Awaitable[None]) -> None:
    """A process that dies while it is being stopped is stopped."""
    try:
        await work
    except TandemError as error:
        log.warning("%s: %s failed: %s", name, what, error.message)
