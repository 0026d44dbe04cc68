"""An HTTP/1.1 response read from bytes as they come, and the events in its body: no I/O here.

    bytes --> ResponseReader --> body --> EventReader --> payloads of `data:` lines

The load generator shares the machine with what it measures. Both readers therefore do the least per
chunk that is right, and cost a few microseconds where a general client costs a hundred.
"""

from __future__ import annotations

import enum

from core.errors import TandemError


class ProtocolError(TandemError):
    """The server's bytes are not a response that HTTP/1.1 allows, or they end too early."""

    code = "protocol_error"
    retryable = True


class _Part(enum.Enum):
    """What the next bytes of the response are."""

    HEAD = enum.auto()
    COUNTED = enum.auto()
    CHUNK_SIZE = enum.auto()
    CHUNK = enum.auto()
    TRAILERS = enum.auto()
    UNTIL_CLOSE = enum.auto()
    NOTHING = enum.auto()


class ResponseReader:
    """Reads one response. `feed` returns body bytes; `complete` says that it has ended."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self._part = _Part.HEAD
        self._buffer = bytearray()
        self._left = 0
        """Bytes still to come of the body (counted) or of the chunk and its line end."""

    @property
    def complete(self) -> bool:
        return self._part is _Part.NOTHING

    @property
    def started(self) -> bool:
        """Whether the status line and headers are in."""
        return self._part is not _Part.HEAD

    @property
    def is_event_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def reusable(self) -> bool:
        """Whether the connection may carry another exchange."""
        return self.complete and self.headers.get("connection", "").lower() != "close"

    def feed(self, data: bytes) -> bytes:
        """The body bytes that `data` completes. Raises ProtocolError."""
        self._buffer += data
        if not self.started and not self._read_head():
            return b""
        match self._part:
            case _Part.UNTIL_CLOSE:
                return self._take(len(self._buffer))
            case _Part.COUNTED:
                return self._read_counted()
            case _:
                return self._read_chunks()

    def end_of_stream(self) -> None:
        """The connection closed. Raises ProtocolError if that cuts the response short."""
        if self._part is _Part.UNTIL_CLOSE:
            self._part = _Part.NOTHING
        if not self.complete:
            raise ProtocolError("the connection closed before the response ended")

    def _read_head(self) -> bool:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return False
        status_line, *lines = self._take(end + 4)[:-4].decode("latin-1").split("\r\n")
        version, _, rest = status_line.partition(" ")
        if not version.startswith("HTTP/1.") or not rest[:3].isdigit():
            raise ProtocolError(f"not an HTTP/1.1 response: {status_line[:80]!r}")
        self.status = int(rest[:3])
        for line in lines:
            name, _, value = line.partition(":")
            self.headers[name.strip().lower()] = value.strip()
        self._part = self._body_part()
        return True

    def _body_part(self) -> _Part:
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            return _Part.CHUNK_SIZE
        length = "0" if self.status in (204, 304) else self.headers.get("content-length")
        if length is None:
            return _Part.UNTIL_CLOSE
        if not length.isdigit():
            raise ProtocolError(f"content-length {length[:40]!r}")
        self._left = int(length)
        return _Part.COUNTED

    def _read_counted(self) -> bytes:
        body = self._take(min(self._left, len(self._buffer)))
        self._left -= len(body)
        if self._left == 0:
            self._part = _Part.NOTHING
        return body

    def _read_chunks(self) -> bytes:
        pieces: list[bytes] = []
        while self._step(pieces):
            pass
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _step(self, pieces: list[bytes]) -> bool:
        """Reads one line or one whole chunk; False if more bytes are needed or nothing follows."""
        if self._part is _Part.CHUNK:
            if len(self._buffer) < self._left:
                return False
            pieces.append(self._take(self._left)[:-2])
            self._part = _Part.CHUNK_SIZE
            return True
        end = self._buffer.find(b"\r\n")
        if end < 0 or self._part is _Part.NOTHING:
            return False
        line = self._take(end + 2)[:-2]
        if self._part is _Part.CHUNK_SIZE:
            self._read_chunk_size(line)
        elif not line:
            self._part = _Part.NOTHING
        return True

    def _read_chunk_size(self, line: bytes) -> None:
        try:
            size = int(line.partition(b";")[0], 16)
        except ValueError:
            raise ProtocolError(f"chunk size {line[:40]!r}") from None
        self._left = size + 2
        self._part = _Part.CHUNK if size else _Part.TRAILERS

    def _take(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken


class EventReader:
    """Reads server-sent events; `feed` returns the data of those that `body` completes.

    Follows the WHATWG event stream format for data lines; comments and other fields are ignored.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._lines: list[bytes] = []

    def feed(self, body: bytes) -> list[bytes]:
        *lines, self._rest = (self._rest + body).split(b"\n")
        events: list[bytes] = []
        for line in lines:
            line = line.rstrip(b"\r")
            if line.startswith(b"data:"):
                self._lines.append(line[5:].removeprefix(b" "))
            elif not line and self._lines:
                events.append(b"\n".join(self._lines))
                self._lines = []
        return events
