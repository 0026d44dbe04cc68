"""A peer that says nothing for too long, told apart from one whose words we have not read yet."""

from __future__ import annotations

import asyncio
from types import TracebackType

_GRACE_SHARE = 0.05
"""Of the limit, its last part: how long we only read on before a peer is given up."""


class Silence:
    """`async with Silence(limit_s) as peer: ... peer.heard() ...`

    Raises TimeoutError out of the block once nothing was heard for `limit_s`. A process that stood
    still itself, stopped or without a core, finds its timers due together with everything that came
    meanwhile; so the last twentieth of the limit begins when a timer says so, however late, and the
    peer is given up only if nothing was there to read in it. A word costs no timer: the one there
    is looks at the latest deadline when it fires.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._deadline = 0.0
        self._timeout = asyncio.timeout_at(None)
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Silence:
        self._loop = asyncio.get_running_loop()
        await self._timeout.__aenter__()
        self.heard()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(kind, error, traceback)

    def heard(self, limit_s: float | None = None) -> None:
        """The peer lives. `limit_s`: how long it may be silent from here on."""
        if limit_s is not None:
            self._limit_s = limit_s
        self._deadline = self._loop.time() + (1 - _GRACE_SHARE) * self._limit_s
        if self._timer is None or self._timer.when() > self._deadline:
            self._look_at(self._deadline)

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        now, deadline = self._loop.time(), self._deadline
        if now < deadline:
            self._look_at(deadline)
        else:
            grace_s = _GRACE_SHARE * self._limit_s
            self._timer = self._loop.call_at(now + grace_s, self._give_up, deadline)

    def _give_up(self, deadline: float) -> None:
        if self._deadline == deadline:
            self._timeout.reschedule(self._loop.time())
        else:
            self._look_at(self._deadline)
