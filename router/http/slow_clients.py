"""Which connections have waited too long for a client that sends no whole request, or takes no end.

uvicorn gives a client 5 s between two requests, but any byte ends that, a new connection has no
limit at all, and neither has the rest of a body that was answered before its end. So a few bytes a
minute would hold a connection, and its file descriptor, for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar


class Exchange(Protocol):
    """A request and its answer."""

    response_complete: bool


class Transport(Protocol):
    """What a connection writes to."""

    def is_closing(self) -> bool: ...


class Connection(Protocol):
    """`cycle` is its last request, None before the first."""

    @property
    def cycle(self) -> Exchange | None: ...

    @property
    def transport(self) -> Transport: ...


C = TypeVar("C", bound=Connection)


class Patience(Generic[C]):
    """Asked now and then. A connection's time begins when it is first seen with nothing on it that
    is being read or answered, or while it closes, and anew after each request."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._since: dict[C, tuple[Exchange | None, float]] = {}

    def overdue(self, connections: Iterable[C], now: float) -> list[C]:
        """Those whose time is over."""
        since: dict[C, tuple[Exchange | None, float]] = {}
        for connection in connections:
            last = connection.cycle
            if last is None or last.response_complete or connection.transport.is_closing():
                known = self._since.get(connection)
                since[connection] = (last, now) if known is None or known[0] is not last else known
        self._since = since
        return [c for c, (_, begun) in since.items() if now - begun >= self._timeout_s]
