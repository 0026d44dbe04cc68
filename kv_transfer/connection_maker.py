"""Makers of links that are one connection each, which D opens to a port of P's."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Generic

from core.errors import TransferError
from kv_transfer.lazy_port import LazyPort
from kv_transfer.link import DataLink, Rendezvous
from kv_transfer.link_port import C, LinkPort


class ConnectionMaker(Generic[C]):
    """A `LinkMaker` for one process. Thread-safe.

    `listen`, `dial(address, name, timeout_s)` and `link`, which makes an end of a connection, say
    what kind of connections they are. The first two raise OSError; `dial` may raise TransferError.
    """

    def __init__(
        self,
        *,
        backend: str,
        host: str,
        listen: Callable[[], tuple[LinkPort[C], int]],
        dial: Callable[[tuple[str, int], str, float], C],
        link: Callable[[C], DataLink],
    ) -> None:
        self._backend = backend
        self._host = host
        self._port = LazyPort(listen, f"cannot wait for links at {host}")
        self._dial = dial
        self._link = link

    def host(self) -> Rendezvous:
        return Rendezvous(self._host, self._port.address(), self._backend)

    def accept(self, name: str, timeout_s: float) -> DataLink:
        return self._link(self._port.take(name, timeout_s))

    def abandon(self, name: str) -> None:
        self._port.abandon(name)

    def dial(self, rendezvous: Rendezvous, name: str, timeout_s: float) -> DataLink:
        if rendezvous.backend != self._backend:
            raise TransferError(
                f"P sends over {rendezvous.backend}, D receives over {self._backend}",
                reason="incompatible",
            )
        at = (rendezvous.host, rendezvous.port)
        what = f"a link to {at[0]}:{at[1]}"
        try:
            return self._link(self._dial(at, name, timeout_s))
        except TimeoutError as error:
            raise TransferError(f"{what}: timed out", reason="timeout") from error
        except OSError as error:
            raise TransferError(f"{what}: {error}", reason="peer_lost") from error

    def close(self) -> None:
        self._port.close()


def listen_at(host: str) -> tuple[socket.socket, int]:
    """Takes connections at this address only, and says at which port. Raises OSError."""
    family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    listener = socket.create_server((host, 0), family=family)
    port: int = listener.getsockname()[1]
    return listener, port


def send_at_once(connection: socket.socket) -> None:
    """Else a greeting takes 40 ms: a second small message waits until the first is acknowledged."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
