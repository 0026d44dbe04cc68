"""What one side of a link's control stream still has to say, with heartbeats in the silence."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator
from typing import Generic, TypeVar

M = TypeVar("M")

HEARTBEATS_PER_TIMEOUT = 4
"""A peer silent for a whole timeout has missed this many."""


class Outbox(Generic[M]):
    """A queue from any thread to one stream of the event loop `loop`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, heartbeat: M, timeout_s: float) -> None:
        self._loop = loop
        self._heartbeat = heartbeat
        self._period_s = timeout_s / HEARTBEATS_PER_TIMEOUT
        self._lock = threading.Lock()
        self._messages: deque[M] = deque()
        self._closed = False
        self._wake = asyncio.Event()

    def put(self, message: M) -> None:
        """Says it, in order; dropped if the stream is closed. Any thread."""
        with self._lock:
            if not self._closed:
                self._messages.append(message)
                self._notify()

    def close(self) -> None:
        """Ends the stream after what was put before. Any thread; idempotent."""
        with self._lock:
            self._closed = True
            self._notify()

    async def stream(self) -> AsyncIterator[list[M]]:
        """Everything put, all that is there at once, and a heartbeat after a while of nothing."""
        while True:
            self._wake.clear()
            messages, closed = self._take()
            if messages:
                yield messages
            if closed:
                return
            if not messages and not await self._woken():
                yield [self._heartbeat]

    async def _woken(self) -> bool:
        try:
            async with asyncio.timeout(self._period_s):
                await self._wake.wait()
        except TimeoutError:
            return False
        return True

    def _take(self) -> tuple[list[M], bool]:
        with self._lock:
            messages = list(self._messages)
            self._messages.clear()
            return messages, self._closed

    def _notify(self) -> None:
        # The loop is closed only when the process ends; then nobody listens any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._wake.set)
