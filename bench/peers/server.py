"""A server's processes: started, found ready, paused, gone on, stopped.

started in a session of its own, output to a log file
  -> asked until it answers -> measured [-> SIGSTOP ... SIGCONT -> measured] -> SIGTERM -> gone,
     or killed after a grace time
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from asyncio.subprocess import DEVNULL, STDOUT, Process
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.client import PreparedRequest, ServerError
from bench.peers.client import PeerClient
from bench.peers.memory import tree
from bench.runner import Timer

_STOP_GRACE_S = 20.0
_RETRY_S = 0.05
_KEPT_CHARACTERS = 2_000
_REFUSALS = ("HTTP 400", "HTTP 422")
"""What no waiting will change."""


@dataclass(frozen=True, slots=True)
class Server:
    """A process that serves, or will."""

    process: Process
    log: Path
    started_s: float

    @property
    def pid(self) -> int:
        return self.process.pid

    def pause(self) -> None:
        """Stops all its processes where they are: they hold memory, and use no core."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal_all(signal.SIGCONT)

    def said(self) -> str:
        """The end of what it wrote."""
        return self.log.read_text(errors="replace")[-_KEPT_CHARACTERS:]

    async def stop(self) -> None:
        """Asks it to end, paused or not; what is left of it after a grace time is killed."""
        below = tree(self.pid)
        self.resume()
        if self.process.returncode is None:
            self.process.terminate()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_GRACE_S):
                await self.process.wait()
        # Also after a clean end: an orphan would take a core from whoever is measured next
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(pid) == self.pid:
                    os.kill(pid, signal.SIGKILL)
        await self.process.wait()

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in tree(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


@contextlib.asynccontextmanager
async def running(command: Sequence[str], log: Path, timer: Timer) -> AsyncIterator[Server]:
    """The command's process until the block ends. Raises ServerError if it cannot be run."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        started_s = timer.now()
        try:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=DEVNULL, stdout=output, stderr=STDOUT, start_new_session=True
            )
        except OSError as error:
            raise ServerError(f"cannot run {command[0]}: {error.strerror}") from None
    server = Server(process, log, started_s)
    try:
        yield server
    finally:
        await server.stop()


async def first_answer(
    server: Server, client: PeerClient, request: PreparedRequest, timer: Timer, *, timeout_s: float
) -> float:
    """Seconds from the process's start to the first token of a request that waits for it.

    The request is sent again until it is taken. Raises ServerError with the end of the log if the
    process ends, or does not answer in time.
    """
    error = ""
    while timer.now() - server.started_s < timeout_s:
        record = await client.send(request)
        if record.ok:
            return record.chunk_times_s[0] - server.started_s
        error = record.error or ""
        if error.startswith(_REFUSALS):
            raise ServerError(f"refuses the request: {error}\n{server.said()}")
        if server.process.returncode is not None:
            raise ServerError(f"ended before it served\n{server.said()}")
        await timer.until(timer.now() + _RETRY_S)
    raise ServerError(f"no answer within {timeout_s:g} s, last {error}\n{server.said()}")
