"""Keep-alive connections to one server, for one exchange at a time each.

    take a connection (idle, or new) -> write the request -> body bytes or events as they come
      -> response complete: back to the idle ones
      -> error, deadline or cancel: closed, never used again

A kept connection may have been closed by the server meanwhile; if it breaks before the first byte
of a response, the exchange is made once more on a new one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from bench.http_response import EventReader, ProtocolError, ResponseReader
from core.clock import Clock
from core.errors import ConfigError

EventSink = Callable[[float, bytes], None]
"""Called with the arrival time in seconds and the data of each event."""


@dataclass(frozen=True, slots=True)
class Response:
    """What is known when a response has ended. `body` is empty for an event stream."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    """By lower-case name."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a server listens."""

    host: str
    port: int
    tls: bool = False


def parse_origin(url: str) -> Origin:
    """Scheme, host and port of `url`; raises ConfigError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"URL {url!r}: expected http://host:port or https://host")
    tls = parts.scheme == "https"
    return Origin(parts.hostname, parts.port or (443 if tls else 80), tls)


class ConnectionPool:
    """Connections to one origin; grows with the exchanges that are open at once."""

    def __init__(self, origin: Origin, clock: Clock) -> None:
        self._origin = origin
        self._clock = clock
        self._tls = ssl.create_default_context() if origin.tls else None
        self._idle: list[_Connection] = []

    async def exchange(self, request: bytes, on_event: EventSink) -> Response:
        """Sends `request` and reads its response. Raises OSError or ProtocolError."""
        kept = self._idle_connection()
        if kept is not None:
            try:
                return await self._exchange_on(kept, request, on_event)
            except (OSError, ProtocolError):
                if kept.saw_response:
                    raise
        return await self._exchange_on(await self._connect(), request, on_event)

    def close(self) -> None:
        """Closes all idle connections. Idempotent."""
        while self._idle:
            self._idle.pop().close()

    def _idle_connection(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: _Connection(self._clock), self._origin.host, self._origin.port, ssl=self._tls
        )
        return connection

    async def _exchange_on(
        self, connection: _Connection, request: bytes, on_event: EventSink
    ) -> Response:
        reusable = False
        try:
            response = await connection.exchange(request, on_event)
            reusable = connection.reusable
        finally:
            if reusable:
                self._idle.append(connection)
            else:
                connection.close()
        return response


class _Connection(asyncio.Protocol):
    """One socket. Bytes are stamped and read in the callback that receives them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._transport: asyncio.WriteTransport | None = None
        self._reader = ResponseReader()
        self._events = EventReader()
        self._on_event: EventSink = _ignore
        self._body = bytearray()
        self._done: asyncio.Future[Response] | None = None
        self.saw_response = False

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def reusable(self) -> bool:
        return self.is_open and self._reader.reusable

    async def exchange(self, request: bytes, on_event: EventSink) -> Response:
        assert self._transport is not None and self._done is None
        self._reader, self._events, self._body = ResponseReader(), EventReader(), bytearray()
        self._on_event = on_event
        self.saw_response = False
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._done
        finally:
            self._done = None
            self._on_event = _ignore

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._done is None or self._done.done():
            self.close()  # bytes that nobody asked for: what follows cannot be told apart
            return
        now_s = self._clock.now()
        self.saw_response = True
        try:
            self._deliver(now_s, self._reader.feed(data))
        except ProtocolError as error:
            self._fail(error)

    def connection_lost(self, exc: Exception | None) -> None:
        try:
            self._reader.end_of_stream()
        except ProtocolError as error:
            self._fail(exc or error)
        else:
            self._finish()

    def _deliver(self, now_s: float, body: bytes) -> None:
        if self._reader.is_event_stream:
            for payload in self._events.feed(body):
                self._on_event(now_s, payload)
        else:
            self._body += body
        if self._reader.complete:
            self._finish()

    def _finish(self) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_result(
                Response(self._reader.status, bytes(self._body), self._reader.headers)
            )

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)


def _ignore(now_s: float, payload: bytes) -> None:
    """Where events go that no exchange waits for."""
