"""How plans travel from the leader to the other ranks: frames over one TCP connection each.

    connect   a rank says the group's token and its number; whoever knows no token is cut off
    frame     a message (core/frames.py); an empty one is a heartbeat
    answer    a byte for every heartbeat, given when the messages before it are done
    end       either side closing, or silent beyond the deadline: WorkerLostError

The leader sends heartbeats from a thread of its own, so that ranks may wait for work for ever; the
same thread notices a rank that dies or stops while nothing is computed.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

from core.errors import WorkerLostError
from core.frames import read_frame, send_frame
from engine.plan_message import PlanMessage, Stop, decode, encode

_TOKEN_BYTES = 32
_HELLO = struct.Struct(f"<{_TOKEN_BYTES}sI")
_WELCOME, _ALIVE = b"\x01", b"\x02"
_HEARTBEAT = b""


class PlanListener:
    """Where the other ranks of a new group connect, on `host` only."""

    def __init__(self, host: str) -> None:
        self.token = secrets.token_bytes(_TOKEN_BYTES)
        family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
        self._socket = socket.create_server((host, 0), family=family)
        self._socket.setblocking(False)
        self.port: int = self._socket.getsockname()[1]
        self._gathering = False

    def gather(self, size: int, timeout_s: float) -> list[socket.socket]:
        """Connections of ranks 1 .. size - 1, in order; then nobody can connect any more.

        Raises WorkerLostError if they aren't there in time, or if the listener was closed.
        """
        self._gathering = True
        hellos: dict[socket.socket, bytearray] = {}
        ranks: dict[int, socket.socket] = {}
        deadline = time.monotonic() + timeout_s
        try:
            with selectors.DefaultSelector() as waiting, self._socket:
                waiting.register(self._socket, selectors.EVENT_READ)
                while len(ranks) < size - 1:
                    ready = waiting.select(max(0.0, deadline - time.monotonic()))
                    if not ready:
                        missing = sorted(set(range(1, size)) - ranks.keys())
                        raise WorkerLostError(f"ranks {missing} did not come in {timeout_s:g} s")
                    for key, _ in ready:
                        if key.fileobj is self._socket:
                            connection, _ = self._socket.accept()
                            connection.setblocking(False)
                            hellos[connection] = bytearray()
                            waiting.register(connection, selectors.EVENT_READ)
                        else:
                            self._hear(key.fileobj, waiting, hellos, ranks, size)  # type: ignore[arg-type]
        except (OSError, ValueError) as error:
            _close([*hellos, *ranks.values()])
            raise WorkerLostError(f"ranks could not connect: {error}") from error
        except WorkerLostError:
            _close([*hellos, *ranks.values()])
            raise
        _close(hellos)
        return [ranks[rank] for rank in range(1, size)]

    def close(self) -> None:
        """Ends a `gather` under way. Idempotent; any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # which wakes a `gather`, as closing does not
        if not self._gathering:
            self._socket.close()

    def _hear(
        self,
        connection: socket.socket,
        waiting: selectors.BaseSelector,
        hellos: dict[socket.socket, bytearray],
        ranks: dict[int, socket.socket],
        size: int,
    ) -> None:
        """Takes what a connection says first; welcomes it as a rank, or closes it."""
        hello = hellos[connection]
        with contextlib.suppress(ConnectionError):
            received = connection.recv(_HELLO.size - len(hello))
            hello += received
            if received and len(hello) < _HELLO.size:
                return
        del hellos[connection]
        waiting.unregister(connection)
        token, rank = _HELLO.unpack(hello) if len(hello) == _HELLO.size else (b"", 0)
        known = hmac.compare_digest(token, self.token)
        if known and 0 < rank < size and rank not in ranks:
            connection.sendall(_WELCOME)
            ranks[rank] = connection
        else:
            connection.close()


class PlanSender:
    """The leader's end. `send` and `step` belong to one thread, `close` may be called by any."""

    def __init__(
        self, connections: list[socket.socket], *, heartbeat_s: float, timeout_s: float
    ) -> None:
        self._connections = connections
        self._heartbeat_s = heartbeat_s
        self._timeout_s = timeout_s
        self._lock = threading.Lock()  # a frame goes out whole
        self._closing, self._closed = socket.socketpair()
        self._answers_due: float | None = None
        self._unanswered: set[int] = set()
        self._stepping = False
        self._num_settled = 0
        self._thread: threading.Thread | None = None
        for connection in connections:
            connection.settimeout(timeout_s)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def watch(self, on_lost: Callable[[WorkerLostError], None]) -> None:
        """Starts heartbeats; `on_lost` is called once, from their thread, if a rank is gone."""
        self._thread = threading.Thread(
            target=self._watch, args=(on_lost,), name="tandem-plan-heartbeats", daemon=True
        )
        self._thread.start()

    @property
    def num_settled(self) -> int:
        """Plans sent so far, but for a step under way. Any thread may ask.

        A rank that has followed as many has in its KV whatever the leader knows to be there.
        """
        return self._num_settled

    def send(self, message: PlanMessage) -> None:
        """To every rank. Raises WorkerLostError."""
        self._send_frame(encode(message))
        self._num_settled += 1

    @contextlib.contextmanager
    def step(self, message: PlanMessage) -> Iterator[None]:
        """Sends the message; within the block ranks compute with us and owe no answer."""
        self._stepping = True
        try:
            self._send_frame(encode(message))
            yield
            self._num_settled += 1
        finally:
            self._answers_due = time.monotonic() + self._timeout_s
            self._stepping = False

    def close(self) -> None:
        """Tells the ranks to stop, as far as they listen. Idempotent."""
        if self._closing.fileno() < 0:
            return
        self._closing.close()
        if self._thread is not None:
            self._thread.join()  # it would take the end of a rank for a loss
        with contextlib.suppress(WorkerLostError):
            self.send(Stop())
        _close([*self._connections, self._closed])

    def _send_frame(self, message: bytes) -> None:
        with self._lock:
            for index, connection in enumerate(self._connections):
                try:
                    send_frame(connection, message)
                except OSError as error:
                    raise WorkerLostError(f"rank {index + 1} takes no plans: {error}") from error

    def _watch(self, on_lost: Callable[[WorkerLostError], None]) -> None:
        try:
            with selectors.DefaultSelector() as waiting:
                waiting.register(self._closed, selectors.EVENT_READ)
                for index, connection in enumerate(self._connections):
                    waiting.register(connection, selectors.EVENT_READ, index)
                while self._watch_once(waiting):
                    pass
        except WorkerLostError as error:
            on_lost(error)

    def _watch_once(self, waiting: selectors.BaseSelector) -> bool:
        """Answers, closed connections, deadlines; False once this end is closed."""
        ready = waiting.select(self._heartbeat_s)
        for key, _ in ready:
            if key.fileobj is self._closed:
                return False
            self._take_answer(key.data)
        if not ready:
            self._ask()
        return True

    def _take_answer(self, index: int) -> None:
        try:
            answer = self._connections[index].recv(64)
        except OSError:
            answer = b""
        if not answer:
            raise WorkerLostError(f"rank {index + 1} of the group is gone")
        self._unanswered.discard(index)

    def _ask(self) -> None:
        """Sends the next heartbeat once all ranks have answered the last one."""
        now = time.monotonic()
        if not self._unanswered:
            self._unanswered = set(range(len(self._connections)))
            self._answers_due = now + self._timeout_s
            self._send_frame(_HEARTBEAT)
        elif not self._stepping and self._answers_due is not None and now > self._answers_due:
            late = sorted(index + 1 for index in self._unanswered)
            raise WorkerLostError(f"ranks {late} did not answer within {self._timeout_s:g} s")


class PlanReceiver:
    """Another rank's end. Belongs to one thread, but for `close`."""

    def __init__(self, host: str, port: int, token: bytes, rank: int, *, timeout_s: float) -> None:
        """Connects. Raises WorkerLostError, also where the token is not the group's."""
        try:
            self._socket = socket.create_connection((host, port), timeout_s)
        except OSError as error:
            raise WorkerLostError(f"no leader at {host}:{port}: {error}") from error
        welcome = b""
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(_HELLO.pack(token, rank))
            welcome = self._socket.recv(1)
        if welcome != _WELCOME:
            self._socket.close()
            raise WorkerLostError(f"{host}:{port} takes no rank {rank} with this token")

    def patience(self, silence_s: float) -> None:
        """From here on a leader without even a heartbeat for `silence_s` is lost."""
        self._socket.settimeout(silence_s)

    def receive(self) -> PlanMessage:
        """The next message, whenever it comes. Raises WorkerLostError."""
        try:
            while True:
                message = read_frame(self._socket)
                if message:
                    return decode(message)
                self._socket.sendall(_ALIVE)
        except OSError as error:
            raise WorkerLostError(f"the leader is lost: {error}") from error

    def close(self) -> None:
        """Ends a `receive` under way. Idempotent; any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _close(sockets: list[socket.socket] | dict[socket.socket, bytearray]) -> None:
    for each in sockets:
        each.close()
