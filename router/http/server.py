"""The HTTP server inside this process: uvicorn without its signal handlers, on a socket of ours."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from core.errors import ConfigError
from protos.certificate_files import CertificateFiles, FrontTls
from router.http.protocol import StreamingProtocol
from router.http.slow_clients import Patience

REQUEST_TIMEOUT_S = 30.0
"""For a client to send a request's head, and what is left of a body that was answered already."""


class _Server(uvicorn.Server):
    """Says when it accepts connections, and leaves signals to whoever runs the process."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.accepting = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class HttpServer:
    """Serves one application. `start` returns once connections are accepted."""

    def __init__(
        self,
        app: FastAPI,
        *,
        host: str,
        port: int,
        certificates: CertificateFiles[FrontTls] | None = None,
    ) -> None:
        """HTTPS with `certificates`, plain without."""
        self._app = app
        self._certificates = certificates
        self._host = host
        self._port = port
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None

    async def start(self, *, timeout_s: float) -> int:
        """Binds and serves; the port that was bound. Raises ConfigError if it is taken."""
        listener = listen(self._host, self._port)
        config = uvicorn.Config(
            self._app,
            # Whatever is installed: httptools refuses headers that h11 takes (a DEL in a value)
            http=StreamingProtocol,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            # Whoever stops us has let requests end before; what is left is soon cancelled.
            timeout_graceful_shutdown=1,
        )
        if self._certificates is not None:
            config.load()
            config.ssl = _replaceable(self._certificates)
        self._server = _Server(config)
        self._task = asyncio.create_task(self._server.serve([listener]), name="http server")
        async with asyncio.timeout(timeout_s):
            await self._server.accepting.wait()
        self._sweeping = asyncio.create_task(_send_away(self._server), name="slow http clients")
        port: int = listener.getsockname()[1]
        return port

    async def stop(self) -> None:
        """Ends the server, and cancels what still runs on it. Idempotent."""
        if self._server is None or self._task is None:
            return
        self._server.should_exit = True
        tasks = {self._task}
        if self._sweeping is not None:
            self._sweeping.cancel()
            tasks.add(self._sweeping)
        # Not awaited themselves: who hurries cancels this call and calls it again.
        await asyncio.wait(tasks)
        self._server = self._task = None


async def _send_away(server: uvicorn.Server) -> None:
    """Closes connections that hold a place and send no request, until it is cancelled."""
    loop, patience = asyncio.get_running_loop(), Patience[H11Protocol](REQUEST_TIMEOUT_S)
    while True:
        await asyncio.sleep(REQUEST_TIMEOUT_S / 4)
        connections = [c for c in server.server_state.connections if isinstance(c, H11Protocol)]
        for connection in patience.overdue(connections, loop.time()):
            if connection.transport.is_closing():
                connection.transport.abort()  # it closed long ago, for a client that doesn't read
            else:
                connection.transport.close()


def _replaceable(certificates: CertificateFiles[FrontTls]) -> ssl.SSLContext:
    """A context whose every new connection takes the certificates of the moment."""
    context = certificates.current().context

    def on_hello(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = certificates.current().context

    context.sni_callback = on_hello
    return context


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. Raises ConfigError if the address is taken or not ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio turns off Nagle's delays (40 ms for an answer of two writes) only where the protocol
    # is named.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot serve HTTP on {host}:{port}: {error.strerror}") from None
    listener.setblocking(False)
    return listener
