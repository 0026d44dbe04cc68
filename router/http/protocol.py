"""HTTP/1.1 as uvicorn and h11 speak it, but for the pieces of a stream, which are framed here.

h11 checks every piece against its state machine, which stays where it is until the body ends: that
takes 5 us of the 60 that a token costs.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from router.http.direct_send import PIECES

_CHUNKED = b"\r\ntransfer-encoding: chunked\r\n"


class StreamingProtocol(H11Protocol):
    """One connection of a client."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state | {PIECES: self._send_piece}, _loop)
        self._connection = self.conn = StreamingConnection(h11.SERVER)

    async def _send_piece(self, piece: bytes) -> None:
        """A `SendPiece` for the present answer; as uvicorn's own `send`, it says nothing to a
        client that is gone."""
        if self.flow.write_paused and not self.cycle.disconnected:
            await self.flow.drain()
        if not self.cycle.disconnected:
            self.transport.write(self._connection.framed(piece))


class StreamingConnection(h11.Connection):
    """The same bytes as h11's own."""

    _chunks = False
    """The body of the present answer goes out in chunks, and has not ended."""

    def framed(self, piece: bytes) -> bytes:
        """What `send` makes of a piece of a body."""
        if self._chunks and piece:
            return b"%x\r\n%b\r\n" % (len(piece), piece)
        return self.send(h11.Data(data=piece)) or b""

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes] | None:
        if type(event) is h11.Data and self._chunks:
            data = event.data
            return [b"%x\r\n" % len(data), data, b"\r\n"] if data else []
        self._chunks = False
        sent = super().send_with_data_passthrough(event)
        if type(event) is h11.Response and sent is not None:
            self._chunks = _CHUNKED in b"".join(sent).lower()
        return sent
