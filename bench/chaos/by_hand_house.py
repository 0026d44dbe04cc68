"""A house of processes started by hand: a Redis, two routers, two workers of each role, no Ray.

On two nodes, the prefill workers live on the other one. A worker may be a group of several ranks:
then each has as many, so that every answer is added up in the order of the undisturbed one.

    store, then all others at once -> ready -> each process is watched: one that ends unasked is a
    crash, and is started again as a supervisor would -> faults, one at a time for each target
    -> SIGTERM to all, workers before their store -> what is left in any session is killed

The last router and the last worker of each role are stopped, cut off and sent bad transfers, but
never ended: their memory says whether anything grows. A group that waits for a stopped rank too
long gives itself up, so the last groups aren't stopped either.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.chaos.house import Door
from bench.chaos.kv_books import books_at_rest
from bench.chaos.plan import GROUP_PATIENCE_S, FaultKind, PlannedFault
from bench.chaos.process import ManagedProcess, Program, memory_of
from bench.chaos.second_node import SecondNode
from bench.chaos.verdict import Books, Memory
from bench.chaos.worker_group import has_ended_within, other_ranks, signal_rank
from bench.client import ServerError
from bench.progress import Progress
from bench.tandem_server import free_port
from core.clock import Clock

STORE = "store"
_NETWORK = "network"
START_TIMEOUT_S = 240.0
_STOP_GRACE_S = 60.0
_WHOLE_WITHIN_S = 120.0
_GROUP_ENDS_WITHIN_S = 120.0
_KILLS = (FaultKind.KILL_PREFILL, FaultKind.KILL_DECODE, FaultKind.KILL_ROUTER)
_STOPS = (
    FaultKind.STOP_PREFILL,
    FaultKind.STOP_DECODE,
    FaultKind.STOP_RANK,
    FaultKind.STOP_ROUTER,
    FaultKind.STOP_STORE,
)


@dataclass(frozen=True, slots=True)
class HouseSettings:
    """What the house is made of."""

    redis_server: str
    logs: Path
    overrides: tuple[str, ...]
    """`section.key=value`, for every process."""
    pace: str = ""
    """Faults of every worker from the beginning, which slow a tiny model down to a real one."""
    num_routers: int = 2
    num_of_each_role: int = 2
    seed: int = 0
    two_nodes: bool = False
    num_ranks: int = 1
    """Of every worker."""


class ByHandHouse:
    """A running house. `start` it; `stop` it whatever happens."""

    def __init__(self, settings: HouseSettings, clock: Clock, progress: Progress) -> None:
        self._settings = settings
        self._clock = clock
        self._progress = progress
        self._live: dict[str, ManagedProcess] = {}
        self._lives: Counter[str] = Counter()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._gone_s: dict[str, float] = {}
        """When a router was last taken away; infinity while it is."""
        self._watchers: set[asyncio.Task[None]] = set()
        self._crashes: list[str] = []
        self._ended_badly: list[str] = []
        self._ended_faults: Counter[str] = Counter()
        self._stopping = False
        self._node = SecondNode() if settings.two_nodes else None
        self._near = "127.0.0.1" if self._node is None else self._node.near_address
        self._redis_port = free_port()
        names = [f"router-{number}" for number in range(settings.num_routers)]
        self._ports = {name: free_port() for name in names}
        self._doors = tuple(Door(n, f"http://127.0.0.1:{p}") for n, p in self._ports.items())
        roles = [(r, n) for r in ("prefill", "decode") for n in range(settings.num_of_each_role)]
        self._workers = tuple(f"{role}-{number}" for role, number in roles)

    @property
    def doors(self) -> Sequence[Door]:
        return self._doors

    async def start(self) -> None:
        if self._node is not None:
            await self._node.open()
        await self._start(STORE)
        await asyncio.gather(*(self._start(name) for name in (*self._workers, *self._ports)))

    def targets(self) -> Mapping[FaultKind, Sequence[str]]:
        prefill = [name for name in self._workers if name.startswith("prefill")]
        decode = [name for name in self._workers if name.startswith("decode")]
        routers = list(self._ports)
        ended = [FaultKind.KILL_PREFILL, FaultKind.RESTART_PREFILL]
        targets: dict[FaultKind, Sequence[str]] = {kind: prefill[:-1] for kind in ended}
        ended = [FaultKind.KILL_DECODE, FaultKind.RESTART_DECODE]
        targets |= {kind: decode[:-1] for kind in ended}
        ended = [FaultKind.KILL_ROUTER, FaultKind.RESTART_ROUTER]
        targets |= {kind: routers[:-1] for kind in ended} | {FaultKind.STOP_ROUTER: routers}
        if self._settings.num_ranks > 1:
            prefill, decode = prefill[:-1], decode[:-1]
            of_ranks = (FaultKind.KILL_RANK, FaultKind.STOP_RANK)
            targets |= {kind: prefill + decode for kind in of_ranks}
        targets |= {FaultKind.STOP_PREFILL: prefill, FaultKind.STOP_DECODE: decode}
        targets |= {kind: [STORE] for kind in (FaultKind.STOP_STORE, FaultKind.KILL_STORE)}
        return targets if self._node is None else targets | {FaultKind.CUT_NETWORK: [_NETWORK]}

    async def carry_out(self, fault: PlannedFault) -> float:
        async with self._locks[fault.target]:
            at_s = self._clock.now()
            if fault.kind is FaultKind.CUT_NETWORK:
                assert self._node is not None
                await self._node.cut_for(fault.for_s)
            elif fault.kind in _STOPS:
                await self._stop_for(fault)
            else:
                await self._end(fault)
                await self._start(fault.target, fault.spec)
                self._back(fault.target)
        return at_s

    def was_away(self, door: str, since_s: float) -> bool:
        return self._gone_s.get(door, -float("inf")) >= since_s

    def crashes(self) -> Sequence[str]:
        return self._crashes

    def faults_within(self) -> Counter[str]:
        done = sum((live.faults for live in self._live.values()), self._ended_faults.copy())
        del done["step delay"]  # the pace, which is there from the beginning
        return done

    def memory(self) -> tuple[Memory, ...]:
        steady = {
            name: live
            for name, live in self._live.items()
            if self._lives[name] == 1 and name != STORE
        }
        pids = {name: live.pid for name, live in steady.items()}
        for name, live in steady.items():
            ranks = enumerate(other_ranks(live), start=1)
            pids |= {f"{name}-rank-{rank}": pid for rank, pid in ranks}
        looks = (memory_of(name, pid) for name, pid in pids.items())
        return tuple(look for look in looks if look is not None)

    async def books(self) -> tuple[Books, ...]:
        addresses = {name: self._live[name].address for name in self._workers}
        return await books_at_rest(addresses, within_s=_WHOLE_WITHIN_S, clock=self._clock)

    async def stop(self) -> Sequence[str]:
        self._stopping = True
        for watcher in list(self._watchers):
            watcher.cancel()
        store = self._live.pop(STORE, None)
        # Workers before their store, so that they can say goodbye
        ends = [live.terminate(_STOP_GRACE_S) for live in self._live.values()]
        left = [text for texts in await asyncio.gather(*ends) for text in texts]
        if store is not None:
            left += await store.terminate(_STOP_GRACE_S)
        if self._node is not None:
            await self._node.close()
        return self._ended_badly + left

    # ---- processes

    async def _start(self, name: str, spec: str = "") -> None:
        program = self._program(name, spec)
        self._lives[name] += 1
        live = await ManagedProcess.start(program, self._settings.logs / f"{name}.log")
        self._live[name] = live
        watcher = asyncio.create_task(self._watch(name, live, spec))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        await live.until_ready(START_TIMEOUT_S)

    async def _watch(self, name: str, live: ManagedProcess, spec: str) -> None:
        status = await live.until_ended()
        if live.end_is_asked_for or self._stopping:
            return
        if not live.may_end:
            self._crashes.append(f"{name} ended with status {status}; it said:\n{live.said()}")
            self._progress(f"crash: {name} ended with status {status}")
        async with self._locks[name]:
            if self._live[name] is not live:  # a fault that came later has replaced it
                return
            self._ended_faults += live.faults
            try:
                await self._start(name, spec)
            except ServerError as error:
                self._progress(f"not back: {error}")

    async def _end(self, fault: PlannedFault) -> None:
        live = self._live[fault.target]
        self._gone_s[fault.target] = float("inf")
        if fault.kind is FaultKind.KILL_RANK:
            live.end_is_asked_for = True
            signal_rank(live, signal.SIGKILL)
            if not await has_ended_within(live, _GROUP_ENDS_WITHIN_S):
                raise ServerError(f"{fault.target} lives on without one of its ranks")
        elif fault.kind in _KILLS or fault.kind is FaultKind.KILL_STORE:
            await live.kill()
        elif left := await live.terminate(_STOP_GRACE_S):
            self._ended_badly += left
        self._ended_faults += live.faults

    def _back(self, name: str) -> None:
        self._gone_s[name] = self._clock.now()

    async def _stop_for(self, fault: PlannedFault) -> None:
        live, is_group = self._live[fault.target], fault.target in self._workers
        is_group = is_group and self._settings.num_ranks > 1
        live.may_end = live.may_end or is_group
        send = signal_rank if fault.kind is FaultKind.STOP_RANK else ManagedProcess.signal
        send(live, signal.SIGSTOP)
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            send(live, signal.SIGCONT)
        # A group may give itself up for that, in a while; the watcher starts it again in any case.
        if (
            is_group
            and fault.for_s > GROUP_PATIENCE_S
            and await has_ended_within(live, 2 * GROUP_PATIENCE_S)
        ):
            self._ended_faults += live.faults
            await self._start(fault.target)

    def _program(self, name: str, spec: str) -> Program:
        make: Callable[[str, str], Program] = self._worker_program
        if name == STORE:
            make = self._store_program
        elif name in self._ports:
            make = self._router_program
        return make(name, spec)

    def _store_program(self, name: str, spec: str) -> Program:
        # Nothing is kept on disk: a killed store comes back empty.
        words = ("--port", str(self._redis_port), "--bind", self._near, "--save", "")
        open_to_the_other_node = ("--protected-mode", "no")
        command = (self._settings.redis_server, *words, *open_to_the_other_node)
        return Program(name, command, "eady to accept connections")

    def _router_program(self, name: str, spec: str) -> Program:
        own = (f"router.http_port={self._ports[name]}", "router.grpc_port=0")
        return Program(name, self._tandem("router", *own), "router ready:")

    def _worker_program(self, name: str, spec: str) -> Program:
        role = name.partition("-")[0]
        specs = ",".join(each for each in (self._settings.pace, spec) if each)
        seed = self._settings.seed + self._lives[name]
        there = self._node if role == "prefill" else None
        host = self._near if there is None else there.far_address
        own = (
            f"faults.spec={specs}",
            f"faults.seed={seed}",
            f"worker.host={host}",
            f"parallel.tensor_parallel_size={self._settings.num_ranks}",
        )
        command = (*self._tandem(f"{role}-worker", *own), "--id", name)
        return Program(name, there.command(command) if there else command, f"{name} ready:")

    def _tandem(self, verb: str, *own: str) -> tuple[str, ...]:
        store = f"redis://{self._near}:{self._redis_port}/0"
        stored = ("state.backend=redis", f"state.redis_url={store}")
        settings = (*stored, *self._settings.overrides, *own)
        options = (part for each in settings for part in ("--set", each))
        return (sys.executable, "-m", "cli.main", verb, *options)
