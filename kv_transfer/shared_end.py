"""One end of a link through shared memory: what it says and hears over a local socket.

One packet a word:

    memory    P > D   once: its size, and with it its descriptor
    message   P > D   offset and size of what is there to be read
    awaited   D > P   a receive was started: a send is done when it has met one

Every word is said and heard by the thread that owns an end, when it starts or awaits a message. An
`abort` shuts the socket down, which both ends notice wherever they wait, as they do when a process
dies. What lies in the memory stays there for either end as long as it refers to it.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence

import torch

from core.clock import MonotonicClock
from core.errors import TransferError
from kv_transfer.link import Pending, bytes_of
from kv_transfer.link_ending import LinkEnding
from kv_transfer.shared_memory import create_shared, map_shared

_WORD = struct.Struct("<BQQ")
_MEMORY, _MESSAGE, _AWAITED = 1, 2, 3
_DESCRIPTOR = struct.Struct("i")


class SharedEnd:
    """One end. All but `abort` belongs to one thread. `creates`: this is P's."""

    def __init__(self, connection: socket.socket, *, creates: bool) -> None:
        connection.setblocking(False)
        self._connection = connection
        self._creates = creates
        self._clock = MonotonicClock()
        self._ending = LinkEnding(connection)
        self._memory: torch.Tensor | None = None
        self._unsaid: deque[bytes] = deque()
        """Words for which the socket had no room."""
        self._sent: deque[_SharedPending] = deque()
        """Messages that the peer does not await yet."""
        self._num_awaited_there = 0
        """Receives of the peer that have met no message of ours."""
        self._awaited: deque[_SharedPending] = deque()
        """Buffers of messages that have not come."""
        self._come: deque[tuple[int, int]] = deque()
        """Offsets and sizes of messages that nobody here has asked for."""

    def share(self, size_bytes: int, timeout_s: float) -> torch.Tensor | None:
        if self._creates:
            self._create(size_bytes)
        else:
            self.wait_until(lambda: self._memory is not None, timeout_s)
        memory = self._memory
        assert memory is not None
        if memory.numel() != size_bytes:
            raise self._corrupt(f"{memory.numel()} bytes are shared in place of {size_bytes}")
        return memory

    def send(self, message: torch.Tensor) -> Pending:
        self._ending.raise_if_over()
        payload = bytes_of(message)
        assert self._memory is not None, "what is sent lies in shared memory"
        offset = _offset(payload, self._memory)
        assert offset is not None, "what is sent lies in shared memory"
        pending = _SharedPending(payload, self)
        self._sent.append(pending)
        self._meet()
        self._say(_MESSAGE, offset, payload.numel())
        return pending

    def recv(self, buffer: torch.Tensor) -> Pending:
        self._ending.raise_if_over()
        pending = _SharedPending(bytes_of(buffer), self)
        self._awaited.append(pending)
        self._say(_AWAITED)
        self._arrive()
        return pending

    def abort(self) -> None:
        self._ending.abort()

    def close(self) -> None:
        self._ending.close()
        self._memory = None
        for pending in (self._sent, self._awaited):
            pending.clear()

    def wait_until(self, is_done: Callable[[], bool], timeout_s: float) -> None:
        """Talks until then, and until all is said: the peer may wait for it. TransferError."""
        deadline = self._clock.now() + timeout_s
        while not is_done() or self._unsaid:
            self._ending.raise_if_over()
            self._talk()
            if is_done() and not self._unsaid:
                return
            rest_s = deadline - self._clock.now()
            if rest_s <= 0:
                raise self._ending.end(f"nothing for {timeout_s:g} s", "timeout")
            poller = select.poll()
            events = select.POLLIN | select.POLLOUT if self._unsaid else select.POLLIN
            poller.register(self._connection, events)
            poller.poll(math.ceil(rest_s * 1000))

    def _create(self, size_bytes: int) -> None:
        """The first word of all, for which there is room."""
        self._ending.raise_if_over()
        try:
            self._memory, descriptor = create_shared(size_bytes)
            try:
                word = _WORD.pack(_MEMORY, size_bytes, 0)
                socket.send_fds(self._connection, [word], [descriptor])
            finally:
                os.close(descriptor)
        except OSError as error:
            raise self._lost(error) from error

    def _say(self, kind: int, first: int = 0, second: int = 0) -> None:
        self._unsaid.append(_WORD.pack(kind, first, second))
        self._say_on()

    def _talk(self) -> None:
        """Says and hears as much as can be at once."""
        self._say_on()
        with contextlib.suppress(BlockingIOError):
            while True:
                self._hear()
        self._meet()
        self._arrive()

    def _say_on(self) -> None:
        try:
            while self._unsaid:
                self._connection.send(self._unsaid[0])
                self._unsaid.popleft()
        except BlockingIOError:
            pass
        except OSError as error:
            raise self._lost(error) from error

    def _hear(self) -> None:
        """One word. Raises BlockingIOError if there is none, TransferError."""
        try:
            word, extra, _, _ = self._connection.recvmsg(
                _WORD.size, socket.CMSG_LEN(_DESCRIPTOR.size), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            raise
        except OSError as error:
            raise self._lost(error) from error
        with contextlib.ExitStack() as stack:
            descriptors = [_DESCRIPTOR.unpack(data)[0] for _, _, data in extra]
            for descriptor in descriptors:
                stack.callback(os.close, descriptor)
            if not word:
                raise self._lost(ConnectionError("the peer closed the connection"))
            if len(word) != _WORD.size:
                raise self._corrupt(f"a word of {len(word)} bytes")
            kind, first, second = _WORD.unpack(word)
            self._take(kind, first, second, descriptors)

    def _take(self, kind: int, first: int, second: int, descriptors: Sequence[int]) -> None:
        memory = self._memory
        if kind == _MEMORY and memory is None and descriptors:
            try:
                self._memory = map_shared(descriptors[0], first)
            except OSError as error:
                raise self._corrupt(str(error)) from error
        elif kind == _MESSAGE and memory is not None and first + second <= memory.numel():
            self._come.append((first, second))
        elif kind == _AWAITED:
            self._num_awaited_there += 1
        else:
            raise self._corrupt(f"an unexpected word {kind} ({first}, {second})")

    def _meet(self) -> None:
        """The oldest messages sent are those that the peer awaits."""
        while self._sent and self._num_awaited_there:
            self._num_awaited_there -= 1
            self._sent.popleft().done = True

    def _arrive(self) -> None:
        """The oldest message is for who asked first."""
        while self._come and self._awaited:
            (offset, size), pending = self._come.popleft(), self._awaited.popleft()
            assert self._memory is not None
            place = _offset(pending.payload, self._memory)
            if size != pending.payload.numel() or place not in (None, offset):
                raise self._corrupt(f"{size} bytes at {offset} are not what is awaited")
            if place is None:
                pending.payload.copy_(self._memory[offset : offset + size])
            pending.done = True

    def _lost(self, error: OSError) -> TransferError:
        return self._ending.end(str(error), "peer_lost")

    def _corrupt(self, message: str) -> TransferError:
        return self._ending.end(message, "corrupt")


class _SharedPending:
    """A message on its way; keeps its bytes where they are."""

    def __init__(self, payload: torch.Tensor, link: SharedEnd) -> None:
        self.payload = payload
        self.done = False
        self._link = link

    def wait(self, timeout_s: float) -> None:
        self._link.wait_until(lambda: self.done, timeout_s)


def _offset(payload: torch.Tensor, memory: torch.Tensor) -> int | None:
    """Where in `memory` it begins; None: it lies elsewhere."""
    offset = payload.data_ptr() - memory.data_ptr()
    return offset if 0 <= offset <= memory.numel() - payload.numel() else None
