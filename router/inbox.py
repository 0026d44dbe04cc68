"""A request's mailbox: many senders, one reader that takes everything at once.

Cheaper than `asyncio.Queue` with a timeout (no task for each wait), and a slow reader gets one
batch, not many wake-ups. Bounded by what may be sent: a request's tokens and its attempts' ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class Inbox(Generic[T]):
    """Used on one event loop only."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._filled = asyncio.Event()

    def put(self, item: T) -> None:
        self._items.append(item)
        self._filled.set()

    def wake(self) -> None:
        """Lets the reader look at the world again although there is nothing to read."""
        self._filled.set()

    async def take(self, timeout_s: float) -> list[T]:
        """All there is, as soon as there is something or a `wake`; empty after the timeout."""
        if not self._filled.is_set():
            try:
                async with asyncio.timeout(timeout_s):
                    await self._filled.wait()
            except TimeoutError:
                return []
        self._filled.clear()
        items = list(self._items)
        self._items.clear()
        return items
