"""Links over plain TCP, between hosts without GPUs: one connection for each data link.

Nothing runs beside the thread that owns an end: what there is room for goes at once, and the system
carries it on while the sender packs the next; whoever waits for a message moves the rest. So a
message costs one copy at each end, and no thread is woken but the one that waits for it.

frame   8 bytes of length, then the message; another length than expected ends the link

A message may lie in many places, such as the blocks of a pool, and goes from there without being
packed. Who connects must show the link's name first, as link_port.py says; but what is carried can
be read and changed on the wire: secure_link.py where that is a stranger's.

Buffers are the system's business, whose limits let it learn more than a program may ask for.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, islice

import torch

from core.clock import MonotonicClock
from kv_transfer.connection_maker import ConnectionMaker, listen_at, send_at_once
from kv_transfer.link import Pending, bytes_of
from kv_transfer.link_ending import LinkEnding
from kv_transfer.link_port import LinkPort, show

_BACKEND = "tcp"
_LENGTH = struct.Struct("<Q")
_MAX_PLACES = 1024
"""In one call: Linux' IOV_MAX."""
_WAKE_BYTES = 1024 * 1024
"""Whoever waits for a message is woken for so much of it, or for its end. The system makes room for
as much, too, before it has learned how fast the link is."""


class TcpLinkMaker(ConnectionMaker[socket.socket]):
    """Makes TCP links for one process. Thread-safe."""

    def __init__(self, *, host: str) -> None:
        def listen() -> tuple[LinkPort[socket.socket], int]:
            listener, port = listen_at(host)
            return LinkPort(listener, _screen), port

        super().__init__(backend=_BACKEND, host=host, listen=listen, dial=_dial, link=TcpLink)


class TcpLink:
    """One end. All but `abort` belongs to one thread."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._clock = MonotonicClock()
        self._ending = LinkEnding(connection)
        self._sends: deque[_TcpPending] = deque()
        self._receives: deque[_TcpPending] = deque()
        self._wake_bytes = 1

    def share(self, size_bytes: int, timeout_s: float) -> torch.Tensor | None:
        return None

    def send(self, message: torch.Tensor) -> Pending:
        return self.send_from([bytes_of(message).numpy().data])

    def send_from(self, places: Sequence[memoryview]) -> Pending:
        self._ending.raise_if_over()
        header = memoryview(_LENGTH.pack(sum(map(len, places))))
        pending = _TcpPending(header, places, self._write_until)
        self._sends.append(pending)
        with contextlib.suppress(BlockingIOError):
            while pending.num_left:
                self._write()
        return pending

    def recv(self, buffer: torch.Tensor) -> Pending:
        self._ending.raise_if_over()
        header = memoryview(bytearray(_LENGTH.size))
        pending = _TcpPending(header, [bytes_of(buffer).numpy().data], self._read_until)
        self._receives.append(pending)
        return pending

    def abort(self) -> None:
        self._ending.abort()

    def close(self) -> None:
        self._ending.close()
        self._sends.clear()
        self._receives.clear()

    def _write_until(self, pending: _TcpPending, timeout_s: float) -> None:
        self._move_until(pending, timeout_s, self._write, select.POLLOUT)

    def _read_until(self, pending: _TcpPending, timeout_s: float) -> None:
        self._move_until(pending, timeout_s, self._read, select.POLLIN)

    def _move_until(
        self, pending: _TcpPending, timeout_s: float, move: Callable[[], None], event: int
    ) -> None:
        """Moves messages until this one is through. Raises TransferError."""
        deadline = self._clock.now() + timeout_s
        while pending.num_left:
            self._ending.raise_if_over()
            try:
                move()
            except BlockingIOError:
                rest_s = deadline - self._clock.now()
                if rest_s <= 0:
                    raise self._ending.end(f"nothing for {timeout_s:g} s", "timeout") from None
                poller = select.poll()
                poller.register(self._connection, event)
                poller.poll(math.ceil(rest_s * 1000))

    def _write(self) -> None:
        """As much of all messages as there is room for. Raises BlockingIOError, TransferError."""
        places = islice(chain.from_iterable(x.rest for x in self._sends), _MAX_PLACES)
        count = self._moved(self._connection.sendmsg, list(places))
        while count:
            oldest = self._sends[0]
            count -= oldest.moved(count)
            if not oldest.num_left:
                self._sends.popleft()

    def _read(self) -> None:
        """As much of the oldest message as is there. The same errors."""
        oldest = self._receives[0]
        try:
            count = self._moved(lambda x: self._connection.recvmsg_into(x)[0], list(oldest.rest))
        except BlockingIOError:
            self._wake_for(oldest)
            raise
        if not count:
            raise self._ending.end("the peer closed the connection", "peer_lost")
        if oldest.length_after(count) not in (None, oldest.size):
            raise self._ending.end("a message of another length came", "corrupt")
        oldest.moved(count)
        if not oldest.num_left:
            self._receives.popleft()

    def _moved(self, move: Callable[[list[memoryview]], int], places: list[memoryview]) -> int:
        """Bytes of these places."""
        try:
            return move(places)
        except BlockingIOError:
            raise
        except OSError as error:
            raise self._ending.end(str(error), "peer_lost") from error

    def _wake_for(self, pending: _TcpPending) -> None:
        """For its first bytes, which tell its length; then for more of it at once."""
        wake_bytes = min(pending.num_left, _WAKE_BYTES) if pending.has_begun else 1
        if wake_bytes != self._wake_bytes:
            self._wake_bytes = wake_bytes
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake_bytes)


class _TcpPending:
    """A message on its way; keeps its bytes where they are."""

    def __init__(
        self,
        header: memoryview,
        places: Sequence[memoryview],
        move_until: Callable[[_TcpPending, float], None],
    ) -> None:
        self.size = sum(map(len, places))
        self.num_left = len(header) + self.size
        """Bytes still to be moved, the length before it among them."""
        self.rest = deque([header, *places])
        self._header = header
        self._move_until = move_until

    def wait(self, timeout_s: float) -> None:
        self._move_until(self, timeout_s)

    @property
    def has_begun(self) -> bool:
        return self.num_left <= self.size

    def length_after(self, count: int) -> int | None:
        """As it was told, with `count` more bytes; None: not yet."""
        if self.num_left - count > self.size:
            return None
        (length,) = _LENGTH.unpack(self._header)
        return int(length)

    def moved(self, count: int) -> int:
        """How many of these bytes are this message's."""
        count = min(count, self.num_left)
        self.num_left -= count
        left = count
        while self.rest and left >= len(self.rest[0]):
            left -= len(self.rest.popleft())
        if left:
            self.rest[0] = self.rest[0][left:]
        return count


def _screen(connection: socket.socket) -> socket.socket:
    send_at_once(connection)
    return connection


def _dial(address: tuple[str, int], name: str, timeout_s: float) -> socket.socket:
    """A connection to where `name` is awaited. Raises OSError."""
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.create_connection(address, timeout_s))
        send_at_once(connection)
        show(connection, name)
        stack.pop_all()
    return connection
