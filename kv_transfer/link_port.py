"""Where a P rank waits for data links that others connect to: who can't show a name is cut off.

connect   whoever connects is screened at once, by what the operating system or its first words say
show      D sends the digest of the link's name, which it has from the control stream
welcome   the name is awaited, once: the connection is the link's from now on

Many strangers at once hold nobody up: beyond a bound, whoever has been connecting for longest is
cut off, and a peer takes milliseconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from core.errors import TransferError
from core.frames import read_exactly

_LOG = logging.getLogger(__name__)

GREETING_TIMEOUT_S = 5.0
"""For each step of a peer's greeting, and until the link it names is awaited here."""
MAX_GREETINGS = 64
_REMEMBERED_NAMES = 1024
"""Of links given up, in case somebody still comes to wait for one."""
_PAUSE_S = 0.05
_WELCOME = b"\x01"

C = TypeVar("C", bound=socket.socket)


class LinkPort(Generic[C]):
    """Listens from the beginning until `close`. Thread-safe.

    `screen` makes of a connection what the link will use, and waits for nobody; `greet` may wait,
    and belongs to a thread of that connection. Both raise OSError to cut it off.
    """

    def __init__(
        self,
        listener: socket.socket,
        screen: Callable[[socket.socket], C],
        greet: Callable[[C], None] = lambda _: None,
    ) -> None:
        self._socket = listener
        self._screen = screen
        self._greet_first = greet
        self._changed = threading.Condition()
        self._awaited: dict[bytes, C | None] = {}
        self._given_up: deque[bytes] = deque(maxlen=_REMEMBERED_NAMES)
        self._greeting: dict[C, None] = {}
        self._closed = False
        threading.Thread(target=self._accept, name="tandem-kv-port", daemon=True).start()

    def take(self, name: str, timeout_s: float) -> C:
        """The connection of the peer that shows `name`. Raises TransferError."""
        shown = digest(name)
        with self._changed:
            self._awaited.setdefault(shown, None)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._is_settled(shown), timeout_s)
            connection = self._awaited.pop(shown)
            if connection is not None:
                return connection
            given_up = self._closed or shown in self._given_up
        if given_up:
            raise TransferError("the link was given up while it was made", reason="peer_lost")
        raise TransferError(f"D did not connect within {timeout_s:g} s", reason="timeout")

    def abandon(self, name: str) -> None:
        """Ends a `take` of this name, also one that is yet to come."""
        with self._changed:
            self._given_up.append(digest(name))
            self._changed.notify_all()

    def close(self) -> None:
        """Takes no connection any more. Idempotent."""
        with self._changed:
            self._closed = True
            greeting = list(self._greeting)
            self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, as closing does not
        self._socket.close()
        for connection in greeting:
            cut(connection)

    def _is_settled(self, shown: bytes) -> bool:
        return self._closed or shown in self._given_up or self._awaited[shown] is not None

    def _accept(self) -> None:
        while True:
            try:
                raw, _ = self._socket.accept()
            except OSError:
                if self._closed:
                    return
                with self._changed:  # whoever it was has gone, or there are too many files
                    self._changed.wait(_PAUSE_S)
                continue
            try:
                raw.settimeout(GREETING_TIMEOUT_S)
                connection = self._screen(raw)
            except OSError as error:  # refused, or it has gone meanwhile
                _LOG.debug("a connection to the data port was refused: %s", error)
                raw.close()
                continue
            self._enter(connection)
            threading.Thread(
                target=self._greet, args=(connection,), name="tandem-kv-greet", daemon=True
            ).start()

    def _enter(self, connection: C) -> None:
        with self._changed:
            self._greeting[connection] = None
            if len(self._greeting) > MAX_GREETINGS:
                cut(next(iter(self._greeting)))

    def _greet(self, connection: C) -> None:
        taken = False
        try:
            self._greet_first(connection)
            shown = bytes(read_exactly(connection, hashlib.sha256().digest_size))
            with self._changed:
                self._changed.wait_for(lambda: self._is_free(shown), GREETING_TIMEOUT_S)
                if self._closed or not self._is_free(shown):
                    raise ConnectionError("nobody waits for this link")
                connection.sendall(_WELCOME)
                self._awaited[shown] = connection
                taken = True
                self._changed.notify_all()
        except OSError as error:  # an ssl.SSLError is one
            _LOG.debug("a connection to the data port was cut off: %s", error)
        finally:
            with self._changed:
                del self._greeting[connection]
            if not taken:
                connection.close()

    def _is_free(self, shown: bytes) -> bool:
        return self._closed or (shown in self._awaited and self._awaited[shown] is None)


def show(connection: socket.socket, name: str) -> None:
    """D's half of the greeting. Raises OSError: ConnectionError if we are not welcome."""
    connection.sendall(digest(name))
    if connection.recv(len(_WELCOME)) != _WELCOME:
        raise ConnectionError("P does not wait for this link")


def cut(connection: socket.socket) -> None:
    """Wakes whoever reads or writes, in any thread; an SSLSocket's own shutdown must not be used
    beside them."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def digest(name: str) -> bytes:
    """What is shown of a name: who hears it can't tell the name."""
    return hashlib.sha256(name.encode()).digest()
