"""Which workers a configuration asks for, and what each of them may use (pure)."""

from __future__ import annotations

from collections.abc import Iterable
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

    @property
    def other_ranks(self) -> range:
        """All but the leader, which is rank 0."""
        return range(1, self.num_ranks)


def check_startable(config: Config, roles: Iterable[Phase]) -> None:
    """Raises ConfigError for what the settings allow and no process can do yet."""
    num_ranks = config.parallel.tensor_parallel_size
    if num_ranks > 1 and Phase.PREFILL in roles:
        raise ConfigError(
            f"parallel.tensor_parallel_size = {num_ranks}: a prefill worker of several ranks "
            "cannot hand anything over yet; serve with cluster.num_prefill_workers = 0 and "
            "router.mode = combined, or use 1"
        )


def roles_of(config: Config) -> set[Phase]:
    """The roles that some worker of `tandem serve` has."""
    return {spec.role for spec in worker_specs(config, num_cores=1)}


def num_sharers(config: Config) -> int:
    """Ranks that share a machine's cores and memory, taken to be all of the cluster's."""
    cluster = config.cluster
    num_workers = cluster.num_prefill_workers + cluster.num_decode_workers
    return num_workers * config.parallel.tensor_parallel_size


def worker_specs(config: Config, *, num_cores: int) -> tuple[WorkerSpec, ...]:
    """Prefill workers first, numbered from 0 within their role."""
    cluster = config.cluster
    counts = (
        (Phase.PREFILL, cluster.num_prefill_workers),
        (Phase.DECODE, cluster.num_decode_workers),
    )
    num_ranks = config.parallel.tensor_parallel_size
    num_threads = threads_per_rank(config, num_cores=num_cores, num_ranks=num_sharers(config))
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
