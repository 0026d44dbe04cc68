"""An event loop in a thread of its own: what lives in it goes on while a test computes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

DEADLINE_S = 240.0
"""Of every wait: far above what is ever needed, so that only a hang meets it."""

ENDING_S = 20.0
"""How long a task that was told to end may take on a busy machine."""


class LoopThread:
    """Runs coroutines for callers in other threads, for the length of a `with` block."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="house")

    def __enter__(self) -> LoopThread:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            left = self.run(_others())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(DEADLINE_S)
            self._loop.close()
        assert not left or error is not None, f"tasks are left: {left}"

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float = DEADLINE_S) -> T:
        """The result of `work`, which runs in the loop. Raises what it raised, or TimeoutError."""
        return asyncio.run_coroutine_threadsafe(_within(timeout_s, work), self._loop).result()


async def _within(timeout_s: float, work: Coroutine[Any, Any, T]) -> T:
    async with asyncio.timeout(timeout_s):
        return await work


async def _others() -> list[str]:
    """Tasks that nobody ended; names, so that a test can say which.

    Those that are ending just now, as gRPC's own after a stop, are given the time to.
    """
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if not others:
        return []
    _, left = await asyncio.wait(others, timeout=ENDING_S)
    return [repr(task) for task in left]
