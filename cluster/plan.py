"""Which workers a configuration asks for, and what each of them may use (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from core.config import Config
from core.errors import ConfigError
from core.request import Phase


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker to be started: a group of `num_ranks` processes that live and die as one."""

    worker_id: str
    role: Phase
    num_ranks: int
    num_threads: int
    """Compute threads of each rank; also the CPUs its placement reserves."""


def check_startable(config: Config) -> None:
    """Raises ConfigError for what the settings allow and no process can do yet."""
    num_ranks = config.parallel.tensor_parallel_size
    if num_ranks > 1:
        raise ConfigError(
            f"parallel.tensor_parallel_size = {num_ranks}: a worker of several ranks cannot be "
            "started yet; use 1"
        )


def worker_specs(config: Config, *, num_cores: int) -> tuple[WorkerSpec, ...]:
    """Prefill workers first, numbered from 0 within their role."""
    cluster = config.cluster
    counts = (
        (Phase.PREFILL, cluster.num_prefill_workers),
        (Phase.DECODE, cluster.num_decode_workers),
    )
    num_ranks = config.parallel.tensor_parallel_size
    num_threads = threads_per_rank(
        config, num_cores=num_cores, num_ranks=num_ranks * sum(count for _, count in counts)
    )
    return tuple(
        WorkerSpec(f"{role.value}-{index}", role, num_ranks, num_threads)
        for role, count in counts
        for index in range(count)
    )


def threads_per_rank(config: Config, *, num_cores: int, num_ranks: int) -> int:
    """The configured number, else an equal share of the machine's cores, at least one.

    More threads than cores would make every parallel region wait for the scheduler.
    """
    return config.parallel.num_threads or max(1, num_cores // max(1, num_ranks))


def with_num_threads(config: Config, num_threads: int) -> Config:
    """The configuration as one rank gets it."""
    parallel = config.parallel.model_copy(update={"num_threads": num_threads})
    return config.model_copy(update={"parallel": parallel})
