"""A `tandem serve` of our own, for the time of a measurement.

start in a process group of its own -> its output names the address once it serves
  -> measured -> SIGTERM -> it stops by itself, or is killed after a grace time
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import socket
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from bench.client import ServerError
from core.errors import ConfigError

_STOP_GRACE_S = 20.0
_KEPT_LINES = 30
_FIRST_PORT, _END_OF_PORTS = 20_000, 32_768
"""Below what Linux hands out by itself (net.ipv4.ip_local_port_range)."""


@contextlib.asynccontextmanager
async def tandem_server(
    settings: Mapping[str, str],
    *,
    start_timeout_s: float = 300.0,
    command: Callable[[Mapping[str, str]], list[str]] | None = None,
) -> AsyncIterator[str]:
    """Runs a server with these settings, on free ports; yields its base URL once it serves.

    `command` turns settings into a command line, by default `serve_command`. Raises ServerError
    with the end of the output if the server does not come up in time.
    """
    port = free_port()
    ports = {"router.http_port": str(port), "router.grpc_port": str(free_port())}
    base_url = f"http://127.0.0.1:{port}"
    arguments = (command or serve_command)({**ports, **settings})
    process = await asyncio.create_subprocess_exec(
        *arguments, stdout=PIPE, stderr=STDOUT, start_new_session=True
    )
    output = _Output(process)
    try:
        await output.wait_for(f"{base_url}/v1", timeout_s=start_timeout_s)
        yield base_url
    finally:
        await _stop(process)
        await output.drained()


@contextlib.asynccontextmanager
async def server_at(base_url: str | None, settings: Mapping[str, str]) -> AsyncIterator[str]:
    """The server at `base_url`; without one, a `tandem_server` of our own."""
    if base_url is not None:
        yield base_url.rstrip("/")
    else:
        async with tandem_server(settings) as own_url:
            yield own_url


def serve_command(settings: Mapping[str, str]) -> list[str]:
    """The command line that serves the configured model with the settings."""
    overrides = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    return [sys.executable, "-m", "cli.main", "serve", *overrides]


def parse_settings(texts: Sequence[str]) -> dict[str, str]:
    """`section.key=value` texts as a mapping; what they mean is the server's to judge."""
    settings: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"--set {text!r}: expected section.key=value")
        settings[name] = value
    return settings


def free_port() -> int:
    """A TCP port that was free a moment ago, and that the system gives to nobody who asks for any.

    Ports beyond are handed out to every connection that somebody opens, at times to one that is
    opened before who was told of the port gets to use it.
    """
    while True:
        with socket.socket() as listener, contextlib.suppress(OSError):
            port = _FIRST_PORT + secrets.randbelow(_END_OF_PORTS - _FIRST_PORT)
            listener.bind(("127.0.0.1", port))
            return port


class _Output:
    """Reads what the process writes, so that its pipe never fills, and keeps the end of it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        self._stream = process.stdout
        self._tail: deque[str] = deque(maxlen=_KEPT_LINES)
        self._reading: asyncio.Task[None] | None = None

    async def wait_for(self, text: str, *, timeout_s: float) -> None:
        """Returns when a line holds `text`; reading goes on. Raises ServerError."""
        try:
            async with asyncio.timeout(timeout_s):
                found = await self._read_until(text)
        except TimeoutError:
            raise ServerError(f"tandem serve took over {timeout_s:g} s\n{self._text()}") from None
        if not found:
            raise ServerError(f"tandem serve ended before it served\n{self._text()}")
        self._reading = asyncio.create_task(self._read_all())

    async def drained(self) -> None:
        """Waits for the end of the output, which its process's end brings."""
        if self._reading is not None:
            await self._reading

    async def _read_all(self) -> None:
        await self._read_until(None)

    async def _read_until(self, text: str | None) -> bool:
        async for line in self._stream:
            self._tail.append(line.decode(errors="replace").rstrip())
            if text is not None and text in self._tail[-1]:
                return True
        return False

    def _text(self) -> str:
        return "\n".join(self._tail)


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Asks the server to stop; after the grace time its whole group is killed."""
    if process.returncode is None:
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_GRACE_S):
            await process.wait()
    except TimeoutError:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
