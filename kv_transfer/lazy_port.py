"""A data port that is opened when it is first needed: many a worker never needs its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from core.errors import TransferError
from kv_transfer.link_port import C, LinkPort

A = TypeVar("A")
"""What others reach the port by."""


class LazyPort(Generic[C, A]):
    """Opened once, by whoever comes first. Thread-safe."""

    def __init__(self, listen: Callable[[], tuple[LinkPort[C], A]], cannot: str) -> None:
        """`listen` raises OSError, which is told as `cannot: ...`."""
        self._listen = listen
        self._cannot = cannot
        self._lock = threading.Lock()
        self._opened: tuple[LinkPort[C], A] | None = None

    def address(self) -> A:
        """Raises TransferError."""
        return self._open()[1]

    def take(self, name: str, timeout_s: float) -> C:
        """The connection of the peer that shows `name`. Raises TransferError."""
        return self._open()[0].take(name, timeout_s)

    def abandon(self, name: str) -> None:
        """Ends a `take` of this name, also one that is yet to come."""
        with self._lock:
            opened = self._opened
        if opened is not None:
            opened[0].abandon(name)

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            opened, self._opened = self._opened, None
        if opened is not None:
            opened[0].close()

    def _open(self) -> tuple[LinkPort[C], A]:
        with self._lock:
            if self._opened is None:
                try:
                    self._opened = self._listen()
                except OSError as error:
                    raise TransferError(f"{self._cannot}: {error}", reason="peer_lost") from error
            return self._opened
