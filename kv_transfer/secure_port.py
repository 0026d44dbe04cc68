"""Where a P rank waits for data links over TLS: who can't show an awaited name is cut off.

connect   TLS 1.3, certificates of one authority on both sides
show      D sends the digest of the link's name, which it has from the control stream
welcome   the name is awaited, once: the connection is the link's from now on

A stranger fails at the certificate, before anything of it is read. Many at once hold nobody up:
beyond a bound, whoever has been connecting for longest is cut off, and a peer takes milliseconds.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import socket
import ssl
import threading
from collections import deque

from core.errors import TransferError
from core.frames import read_exactly
from protos.certificate_files import CertificateFiles, PeerTls

_LOG = logging.getLogger(__name__)

_GREETING_TIMEOUT_S = 5.0
"""For each step of a peer's greeting, and until the link it names is awaited here."""
_MAX_GREETINGS = 64
_REMEMBERED_NAMES = 1024
"""Of links given up, in case somebody still comes to wait for one."""
_PAUSE_S = 0.05
_WELCOME = b"\x01"


class SecurePort:
    """Listens from the beginning until `close`. Thread-safe."""

    def __init__(self, host: str, certificates: CertificateFiles[PeerTls]) -> None:
        """Raises OSError."""
        family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
        self._socket = socket.create_server((host, 0), family=family)
        self.port: int = self._socket.getsockname()[1]
        self._certificates = certificates
        self._changed = threading.Condition()
        self._awaited: dict[bytes, ssl.SSLSocket | None] = {}
        self._given_up: deque[bytes] = deque(maxlen=_REMEMBERED_NAMES)
        self._greeting: dict[ssl.SSLSocket, None] = {}
        self._closed = False
        threading.Thread(target=self._accept, name="tandem-kv-port", daemon=True).start()

    def take(self, name: str, timeout_s: float) -> ssl.SSLSocket:
        """The connection of the peer that shows `name`. Raises TransferError."""
        shown = _digest(name)
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
            self._given_up.append(_digest(name))
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
            context = self._certificates.current().server_context
            with contextlib.suppress(OSError):  # it has gone meanwhile
                raw.settimeout(_GREETING_TIMEOUT_S)
                _send_at_once(raw)
                connection = context.wrap_socket(
                    raw, server_side=True, do_handshake_on_connect=False
                )
                self._enter(connection)
                threading.Thread(
                    target=self._greet, args=(connection,), name="tandem-kv-greet", daemon=True
                ).start()

    def _enter(self, connection: ssl.SSLSocket) -> None:
        with self._changed:
            self._greeting[connection] = None
            if len(self._greeting) > _MAX_GREETINGS:
                cut(next(iter(self._greeting)))

    def _greet(self, connection: ssl.SSLSocket) -> None:
        taken = False
        try:
            connection.do_handshake()
            shown = bytes(read_exactly(connection, hashlib.sha256().digest_size))
            with self._changed:
                self._changed.wait_for(lambda: self._is_free(shown), _GREETING_TIMEOUT_S)
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


def dial_secure(
    address: tuple[str, int],
    name: str,
    certificates: CertificateFiles[PeerTls],
    timeout_s: float,
) -> ssl.SSLSocket:
    """A connection to where `name` is awaited. Raises OSError: ssl.SSLCertVerificationError if
    nobody is there whom we trust, ConnectionError if we are not welcome."""
    context = certificates.current().client_context
    with contextlib.ExitStack() as stack:
        raw = stack.enter_context(socket.create_connection(address, timeout_s))
        _send_at_once(raw)
        connection = context.wrap_socket(raw, server_hostname=certificates.name)
        stack.enter_context(connection)
        connection.sendall(_digest(name))
        if connection.recv(len(_WELCOME)) != _WELCOME:
            raise ConnectionError("P does not wait for this link")
        stack.pop_all()
    return connection


def cut(connection: ssl.SSLSocket) -> None:
    """Wakes whoever reads or writes, in any thread; an SSLSocket's own shutdown must not be used
    beside them."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


def _send_at_once(connection: socket.socket) -> None:
    """Else a greeting takes 40 ms: a second small message waits until the first is acknowledged."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest()
