"""Tandem's processes started by hand: store, router, P and D, without Ray.

    python -m bench.peers.by_hand REDIS_SERVER section.key=value ...

Runs until SIGTERM, or until one of them ends; then all are stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Sequence

from bench.tandem_server import free_port

_GRACE_S = 10.0


def commands(redis_server: str, redis_port: int, settings: Sequence[str]) -> list[list[str]]:
    """The command lines of store, router, prefill worker and decode worker."""
    stored = ("state.backend=redis", f"state.redis_url=redis://127.0.0.1:{redis_port}/0")
    options = [part for text in (*stored, *settings) for part in ("--set", text)]
    store = [redis_server, "--port", str(redis_port), "--bind", "127.0.0.1", "--save", ""]
    verbs = ("router", "prefill-worker", "decode-worker")
    return [store, *([sys.executable, "-m", "cli.main", verb, *options] for verb in verbs)]


async def run(lines: Sequence[Sequence[str]]) -> int:
    """Starts all at once; 0 after SIGTERM, else the status of the first that ended."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    processes = [await asyncio.create_subprocess_exec(*line) for line in lines]
    try:
        ends = [asyncio.create_task(process.wait()) for process in processes]
        asked = asyncio.create_task(over.wait())
        done, _ = await asyncio.wait([asked, *ends], return_when=asyncio.FIRST_COMPLETED)
        return 0 if asked in done else next(end.result() or 1 for end in ends if end in done)
    finally:
        # Workers before their store, so that they can say goodbye
        for process in reversed(processes):
            await _stop(process)


async def _stop(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(_GRACE_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


if __name__ == "__main__":
    sys.exit(asyncio.run(run(commands(sys.argv[1], free_port(), sys.argv[2:]))))
