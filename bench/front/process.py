"""A process of ours that says where it listens, and how much CPU it has used."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from pathlib import Path

from bench.client import ServerError

_START_TIMEOUT_S = 180.0
_STOP_TIMEOUT_S = 10.0
_SAYS = b"listens at "


@contextlib.asynccontextmanager
async def listening(module: str, *arguments: str) -> AsyncIterator[tuple[int, str]]:
    """Runs `python -m module`; yields its process id and the address that it prints.

    Raises ServerError if it prints none in time.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, stdout=PIPE, start_new_session=True
    )
    assert process.stdout is not None
    try:
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                line = await process.stdout.readline()
        except TimeoutError:
            line = b""
        if not line.startswith(_SAYS):
            raise ServerError(f"{module} did not start")
        yield process.pid, line.removeprefix(_SAYS).decode().strip()
    finally:
        await _stop(process)


def say(address: str) -> None:
    """Where this process listens, for `listening`."""
    sys.stdout.buffer.write(_SAYS + address.encode() + b"\n")
    sys.stdout.buffer.flush()


def cpu_s(pid: int) -> float:
    """CPU seconds that the process's threads have used. Linux only."""
    spent = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in spent) * 1e-9


async def _stop(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
