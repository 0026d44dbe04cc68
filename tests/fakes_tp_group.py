"""Real rank processes with real gloo groups, for tests of tensor parallelism."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, TCPStore

from model.tensor_parallel import Collectives, TensorParallel

TIMEOUT = timedelta(seconds=60)


class RankProcesses:
    """`num_ranks` processes; each can join groups of the first k of them, for any k."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def run(self, work: Callable[..., None], directory: Path, *arguments: Any) -> list[int | None]:
        """Runs work(groups, directory, *arguments) in each; the exit codes. None is left behind."""
        context = multiprocessing.get_context("spawn")
        processes = [
            context.Process(target=_rank, args=(work, rank, self._store.port, directory, arguments))
            for rank in range(self._num_ranks)
        ]
        try:
            for process in processes:
                process.start()
            for process in processes:
                process.join(120)
            return [process.exitcode for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.join()


class Groups:
    """What a rank process makes its groups with."""

    def __init__(self, rank: int, port: int) -> None:
        self.rank = rank
        self._store = TCPStore("127.0.0.1", port, is_master=False, timeout=TIMEOUT)

    def join(self, name: str, size: int) -> TensorParallel | None:
        """A group of ranks 0 .. size - 1, or None where this rank is not in it."""
        if self.rank >= size:
            return None
        if size == 1:
            return TensorParallel.single()
        store = PrefixStore(name, self._store)
        gloo = ProcessGroupGloo(store, self.rank, size, TIMEOUT)
        # torch's stubs don't know the collectives that this class has
        return TensorParallel(self.rank, size, cast(Collectives, gloo))


def _rank(
    work: Callable[..., None], rank: int, port: int, directory: Path, arguments: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    work(Groups(rank, port), directory, *arguments)
