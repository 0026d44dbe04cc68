"""Which workers a configuration asks for, and what each of them may use (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from core.config import Config
from core.request import Phase


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """One worker to be started: a group of `num_ranks` processes that live and die as one."""

    worker_id: str
    role: Phase
    num_ranks: int
    num_threads: int
    """Compute threads of each rank; also the CPUs its placement reserves."""

    @property
    def other_ranks(self) -> range:
        """All but the leader, which is rank 0."""
        return range(1, self.num_ranks)


def num_ranks(config: Config, role: Phase) -> int:
    """Ranks of a worker of this role."""
    parallel = config.parallel
    by_role = {
        Phase.PREFILL: parallel.prefill_tensor_parallel_size,
        Phase.DECODE: parallel.decode_tensor_parallel_size,
    }
    return by_role[role] or parallel.tensor_parallel_size


def num_sharers(config: Config) -> int:
    """Ranks that share a machine's cores and memory, taken to be all of the cluster's."""
    cluster = config.cluster
    num_prefill = cluster.num_prefill_workers * num_ranks(config, Phase.PREFILL)
    return num_prefill + cluster.num_decode_workers * num_ranks(config, Phase.DECODE)


def worker_specs(config: Config, *, num_cores: int) -> tuple[WorkerSpec, ...]:
    """Prefill workers first, numbered from 0 within their role."""
    cluster = config.cluster
    counts = (
        (Phase.PREFILL, cluster.num_prefill_workers),
        (Phase.DECODE, cluster.num_decode_workers),
    )
    num_threads = threads_per_rank(config, num_cores=num_cores, num_ranks=num_sharers(config))
    return tuple(
        WorkerSpec(f"{role.value}-{index}", role, num_ranks(config, role), num_threads)
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
