"""Opening the connection to Ray, in a thread that a stop doesn't wait for.

begin > session() > close()      close() may come at any time, also while Ray starts

Ray's own start can't be interrupted, and may never end once a process of it has died. So a stop
that comes meanwhile gives it a little time, then ends those processes and leaves the thread behind.
The thread outlives the start: Ray's processes end with the thread that started them. While one is
left behind in native code, the interpreter must not be taken down: that crashes (seen in 4 of 32
stops at this moment).
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import threading
from concurrent.futures import Future

import ray

from cluster import litter
from cluster.ray_session import LAST_FILES_S, RaySession, new_temp_dir, open_session
from core.config import ClusterConfig

SETTLE_TIMEOUT_S = 4.0
"""For a start to end by itself: Ray without its first process sits for 30 s in a native call that
lets no other thread run, not even the one that watches for signals."""


class RayOpening:
    """A connection that is wanted, being made, or there. `temp_dir` is known from the first."""

    def __init__(self, config: ClusterConfig, *, num_cpus: int) -> None:
        self.temp_dir = new_temp_dir(config)
        """Where a private cluster will put its files; None where an existing one is joined."""
        self._is_closing = threading.Event()
        self._open = functools.partial(
            open_session,
            config,
            num_cpus=num_cpus,
            temp_dir=self.temp_dir,
            is_wanted=lambda: not self._is_closing.is_set(),
        )
        self.left_behind = False
        """Whether a start may still be under way in native code: end the process, not Python."""
        self._opened: asyncio.Future[RaySession] | None = None
        self._closed = threading.Event()

    async def session(self) -> RaySession:
        """Opens it, once. Raises what `open_session` raises."""
        result: Future[RaySession] = Future()
        result.set_running_or_notify_cancel()
        threading.Thread(target=self._run, args=(result,), name="ray start", daemon=True).start()
        self._opened = asyncio.wrap_future(result)
        return await asyncio.shield(self._opened)

    async def close(self) -> None:
        """Disconnects, and ends a private cluster with all its processes and files."""
        self._is_closing.set()
        opened = self._opened
        if opened is not None:
            await asyncio.wait({opened}, timeout=SETTLE_TIMEOUT_S)
        if opened is None or not opened.done():
            await self._abandon(opened)
        elif opened.exception() is None:
            await asyncio.to_thread(opened.result().close)
        self._closed.set()

    def _run(self, result: Future[RaySession]) -> None:
        try:
            result.set_result(self._open())
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            result.set_exception(error)
        self._closed.wait()

    async def _abandon(self, opened: asyncio.Future[RaySession] | None) -> None:
        self.left_behind = opened is not None
        atexit.unregister(ray.shutdown)  # it would wait for what is ended here
        await asyncio.to_thread(self._remove_litter)
        if opened is None:
            return
        await asyncio.wait({opened}, timeout=LAST_FILES_S)
        await asyncio.to_thread(self._remove_litter)
        opened.cancel()

    def _remove_litter(self) -> None:
        if self.temp_dir is not None:
            litter.remove(self.temp_dir)
