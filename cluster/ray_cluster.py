"""A whole cluster on Ray, started in order and stopped in the opposite one.

open     connect to Ray, or start it
store    the actor behind the memory backend
rest     workers and router, all at once: place, load, warm up, announce
watch    one supervisor each; `wait_failed` returns when one gives up
close    router (lets requests end) > workers > store > Ray and its files
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import ray
import ray.util

from cluster.plan import WorkerSpec, with_num_threads, worker_specs
from cluster.ray_actors import Home, RouterActor, WorkerActor
from cluster.ray_group import ActorGroup, ActorSpec, Room, Watch
from cluster.ray_opening import RayOpening
from cluster.ray_rank_actor import RankActor
from cluster.ray_session import RaySession
from cluster.ray_store import StoreRef, create_store, discard_store
from cluster.shell import Makers, Ready
from cluster.supervisor import Supervisor
from core.clock import MonotonicClock
from core.config import Config

ROUTER = "router"
RAY_STOP_S = 2.5
"""What Ray itself needs to stop, kept out of the grace that requests get."""


class StartProgress(Protocol):
    """Told how each process's start goes."""

    def __call__(self, name: str, line: str) -> None:
        """`name` is "ray", "prefill-0", "router" ...; `line` is for a person."""
        ...


@dataclass(frozen=True, slots=True)
class ClusterHooks:
    """What a cluster tells its owner."""

    progress: StartProgress
    on_change: Callable[[str, Ready | None], None]
    """Who serves under a name now; None while nobody does."""
    on_temp_dir: Callable[[Path | None], None]
    """Where a private Ray is about to put its files."""


class RayCluster:
    """Router, workers and store of one `tandem serve`."""

    def __init__(
        self, config: Config, makers: Makers, *, log_dir: Path, hooks: ClusterHooks
    ) -> None:
        self._config = config
        self._makers = makers
        self._log_dir = log_dir
        self._hooks = hooks
        self._opening: RayOpening | None = None
        self.left_start_behind = False
        """As `RayOpening.left_behind`, once it is closed."""
        self._session: RaySession | None = None
        self._store: StoreRef | None = None
        self._workers: list[Supervisor] = []
        self._router: Supervisor | None = None

    @property
    def session(self) -> RaySession:
        """The connection to Ray, once `open` has returned."""
        assert self._session is not None
        return self._session

    async def open(self) -> None:
        """Connects to Ray, or starts it. Call `close` whatever happens from here on."""
        specs = worker_specs(self._config, num_cores=os.cpu_count() or 1)
        num_cpus = sum(spec.num_ranks * spec.num_threads for spec in specs) + 1
        self._opening = RayOpening(self._config.cluster, num_cpus=num_cpus)
        self._hooks.on_temp_dir(self._opening.temp_dir)
        self._hooks.progress("ray", "starting")
        self._session = await self._opening.session()
        self._hooks.progress("ray", "ready")

    async def start(self) -> Ready:
        """Starts everything, and returns the router. Raises the first TandemError of a process."""
        store = self._store = create_store(self._config.state)
        specs = worker_specs(self._config, num_cores=os.cpu_count() or 1)
        self._workers = [self._supervise_worker(spec, specs, store) for spec in specs]
        self._router = self._supervise_router(store)
        keepers = [*self._workers, self._router]
        *_, router = await _all_or_first_error([self._start(keeper) for keeper in keepers])
        return router

    async def wait_failed(self) -> str:
        """The name of a process that is given up for good."""
        assert self._router is not None
        return await _first_ended([*self._workers, self._router])

    async def close(self, grace_s: float) -> None:
        """Stops everything within `grace_s`. Idempotent; works after a failed start too."""
        grace_s = max(0.2, grace_s - RAY_STOP_S)
        if self._router is not None:
            await self._router.drain(grace_s / 2)
        supervisors = [*self._workers, *([self._router] if self._router else [])]
        await asyncio.gather(*(keeper.stop(grace_s / 2) for keeper in supervisors))
        if self._session is not None and self._session.temp_dir is None:
            # Others go on using this Ray. A private one takes everything with it when it ends.
            await asyncio.gather(*(keeper.discard() for keeper in supervisors))
            if self._store is not None:
                await asyncio.to_thread(discard_store, self._store)
        opening, self._opening = self._opening, None
        if opening is not None:
            await opening.close()
            self.left_start_behind = opening.left_behind

    async def _start(self, keeper: Supervisor) -> Ready:
        ready = await keeper.start(lambda line: self._hooks.progress(keeper.name, line))
        self._hooks.progress(keeper.name, f"ready at {ready.address}")
        return ready

    def _supervise_worker(
        self, spec: WorkerSpec, specs: tuple[WorkerSpec, ...], store: StoreRef
    ) -> Supervisor:
        config = with_num_threads(self._config, spec.num_threads)
        home = Home(spec.worker_id, self._log_dir)
        arguments = (home, config, spec.role, store, self._makers.worker)
        num_ranks = sum(each.num_ranks for each in specs)
        room = Room(
            num_cpus=spec.num_threads,  # Ray sets OMP_NUM_THREADS to it
            num_gpus=_gpus_per_rank(num_ranks),
        )
        leader = ActorSpec(spec.worker_id, WorkerActor, arguments)
        ranks = [leader, *[self._other_rank(spec, config, rank) for rank in spec.other_ranks]]
        return self._supervise(spec.worker_id, ranks, room)

    def _other_rank(self, spec: WorkerSpec, config: Config, rank: int) -> ActorSpec:
        name = f"{spec.worker_id}-rank-{rank}"
        return ActorSpec(name, RankActor, (Home(name, self._log_dir), config, spec.role, rank))

    def _supervise_router(self, store: StoreRef) -> Supervisor:
        home = Home(ROUTER, self._log_dir)
        arguments = (home, self._config, store, self._makers.router)
        # Here, not on another machine of the cluster: this is where its address is printed.
        here: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        room = Room(num_cpus=1, node=here)
        return self._supervise(ROUTER, [ActorSpec(ROUTER, RouterActor, arguments)], room)

    def _supervise(self, name: str, ranks: list[ActorSpec], room: Room) -> Supervisor:
        worker = self._config.worker
        watch = Watch(
            start_timeout_s=self._config.cluster.start_timeout_s,
            ping_s=worker.heartbeat_s,
            ping_timeout_s=worker.stuck_after_s + 3 * worker.heartbeat_s,
        )
        return Supervisor(
            name,
            lambda: ActorGroup(ranks, room, watch),
            max_restarts=self._config.cluster.max_restarts,
            clock=MonotonicClock(),
            on_change=self._hooks.on_change,
        )


def _gpus_per_rank(num_ranks: int) -> float:
    """One GPU each where there are enough, else equal shares, rounded down as Ray counts them."""
    resources: Mapping[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    available = resources.get("GPU", 0.0)
    return min(1.0, int(10_000 * available / max(1, num_ranks)) / 10_000)


async def _all_or_first_error(starts: Iterable[Awaitable[Ready]]) -> list[Ready]:
    """Waits for all; on the first failure cancels the others and raises it."""
    tasks = [asyncio.ensure_future(start) for start in starts]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _first_ended(keepers: list[Supervisor]) -> str:
    waits = {asyncio.ensure_future(keeper.ended.wait()): keeper.name for keeper in keepers}
    try:
        done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        return waits[done.pop()]
    finally:
        for wait in waits:
            wait.cancel()
