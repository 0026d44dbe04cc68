"""The other ranks of a worker by hand: child processes, which end with this one.

start   each is told over its standard input what it is; the pipe then stays open
end     the pipe closes, because we close it or because this process dies: they exit
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process

from cluster.rank_process import RankOrder
from cluster.shell import Progress, Worker
from core.config import Config
from core.errors import WorkerLostError
from state.store import Member


class ChildRanks:
    """Ranks 1 .. size - 1 of the worker `worker_id`, of which this process is to be rank 0."""

    def __init__(self, config: Config, worker_id: str, size: int) -> None:
        self._config = config
        self._worker_id = worker_id
        self._size = size
        self._children: list[Process] = []

    @property
    def pids(self) -> list[int]:
        """Of the ranks that were started, rank 1 first."""
        return [child.pid for child in self._children]

    async def lead(self, worker: Worker, progress: Progress) -> Member:
        """Starts `worker` with its other ranks, if it has any. Raises what its start raises, and
        WorkerLostError if a rank ends meanwhile."""
        if self._size == 1:
            return await worker.start(progress)
        at = await worker.open_group()
        for rank in range(1, self._size):
            await self._spawn(RankOrder(self._worker_id, rank, self._config, at))
        starting = asyncio.ensure_future(worker.start(progress))
        ends = [asyncio.ensure_future(child.wait()) for child in self._children]
        try:
            await asyncio.wait((starting, *ends), return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                return starting.result()
            dead = next(rank for rank, end in enumerate(ends, start=1) if end.done())
            raise WorkerLostError(f"rank {dead} of {self._worker_id} did not start")
        finally:
            for task in (starting, *ends):
                task.cancel()

    async def end(self, grace_s: float) -> None:
        """All of them, at the latest after `grace_s`. Idempotent."""
        children, self._children = self._children, []
        for child in children:
            assert child.stdin is not None
            child.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await asyncio.gather(*(child.wait() for child in children))
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()

    async def _spawn(self, order: RankOrder) -> None:
        command = (sys.executable, "-m", "cluster.rank_process")
        child = await asyncio.create_subprocess_exec(*command, stdin=PIPE)
        self._children.append(child)
        assert child.stdin is not None
        child.stdin.write(order.to_line())
        with contextlib.suppress(ConnectionError):  # its end is noticed below
            await child.stdin.drain()
