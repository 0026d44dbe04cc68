"""Threads for work of clients' that is refused where too much of it waits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from core.errors import OverloadedError

MAX_PENDING = 16
"""For each thread, that which it works on included."""

T = TypeVar("T")


class BoundedThreads:
    """Lives on one event loop. Close it when done."""

    def __init__(self, num_threads: int, *, name: str) -> None:
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._most = num_threads * MAX_PENDING
        self._num_pending = 0

    async def run(self, action: Callable[[], T]) -> T:
        """What `action` returns. Raises OverloadedError when too many others wait.

        Who is cancelled waits no more; a thread that has begun ends its work all the same.
        """
        if self._num_pending >= self._most:
            raise OverloadedError(
                f"{self._num_pending} texts wait to be tokenised or detokenised",
                reason="saturated",
            )
        self._num_pending += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, action)
        finally:
            self._num_pending -= 1

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
