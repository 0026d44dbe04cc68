"""The workers that a command is about: those of the run here, or all that share a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.config import Config


@dataclass(frozen=True, slots=True)
class WorkerAt:
    """One incarnation of a worker, and how to call it."""

    worker_id: str
    address: str
    """host:port of its gRPC server."""
    incarnation: str
    """Differs between two lives of the same worker id."""


async def find_workers(config: Config, run_id: str | None) -> list[WorkerAt]:
    """By worker id. Raises ConfigError without a run, StoreUnavailableError.

    A Redis shows who is a member, so not those who drain; a run shows all of its own processes.
    """
    if config.state.backend == "redis" and run_id is None:
        return await _members(config)
    from cli.runs import the_run

    return [
        WorkerAt(process.name, process.address, str(process.pid))
        for process in sorted(the_run(config, run_id).processes, key=lambda each: each.name)
        if process.name != "router"
    ]


async def _members(config: Config) -> list[WorkerAt]:
    from cluster.store_factory import connect_store

    store = connect_store(config.state)
    try:
        return [WorkerAt(m.worker_id, m.address, m.epoch) for m in await store.members()]
    finally:
        await store.close()
