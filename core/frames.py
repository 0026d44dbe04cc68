"""Messages over a byte stream: 4 bytes of length, then the message."""

from __future__ import annotations

import socket
import struct

_LENGTH = struct.Struct("<I")


def send_frame(connection: socket.socket, message: bytes) -> None:
    """Raises OSError, also TimeoutError where the connection has a deadline."""
    connection.sendall(_LENGTH.pack(len(message)) + message)


def read_frame(connection: socket.socket) -> bytearray:
    """The next message. Raises OSError: ConnectionError where the peer has closed."""
    (length,) = _LENGTH.unpack(read_exactly(connection, _LENGTH.size))
    return read_exactly(connection, length)


def read_exactly(connection: socket.socket, size: int) -> bytearray:
    """So many bytes; the same errors."""
    data = bytearray(size)
    rest = memoryview(data)
    while rest:
        count = connection.recv_into(rest)
        if not count:
            raise ConnectionError("the peer closed the connection")
        rest = rest[count:]
    return data
