"""A request's mailbox: many senders, one reader that takes everything at once.

Cheaper than `asyncio.Queue` with a timeout (no task and no timer for each wait), and a slow reader
gets one batch, not many wake-ups. Bounded by what may be sent: a request's tokens and its attempts'
ends.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from core.alarm import Alarm

T = TypeVar("T")


class Inbox(Generic[T]):
    """Used on one event loop only. Close it after the last `take`."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._filled = Alarm()

    def put(self, item: T) -> None:
        self._items.append(item)
        self._filled.set()

    def wake(self) -> None:
        """Lets the reader look at the world again although there is nothing to read."""
        self._filled.set()

    async def take(self, timeout_s: float) -> list[T]:
        """All there is, as soon as there is something or a `wake`; empty after the timeout."""
        await self._filled.wait(timeout_s)
        items, self._items = self._items, []
        return items

    def close(self) -> list[T]:
        """What nobody took. No `take` follows. Idempotent."""
        self._filled.close()
        items, self._items = self._items, []
        return items
