"""A house that `tandem serve` runs under Ray: its supervisor heals, faults only hit.

tandem serve, two workers of each role -> its run record names every process
-> SIGKILL or SIGSTOP to a worker or the router, SIGKILL to one rank, SIGSTOP to Ray's GCS
   -> the record names the new process
-> SIGTERM to `tandem serve`; what is left in any session is killed

On two nodes it joins a Ray of RayNodes; the second raylet is killed and started again, and the
cable cut. What takes several workers away comes one at a time: nobody promises to live without any.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.chaos.house import Door
from bench.chaos.kv_books import books_at_rest
from bench.chaos.plan import FaultKind, PlannedFault
from bench.chaos.process import (
    ManagedProcess,
    ProcessIdentity,
    Program,
    command_of,
    identity_of,
    memory_of,
    send_signal,
)
from bench.chaos.ray_nodes import RayNodes
from bench.chaos.verdict import Books, Memory
from bench.client import OpenAIClient, ServerError, Target
from bench.peers.memory import tree
from bench.tandem_server import free_port
from core.clock import Clock

_GCS = "gcs"
_SERVE = "serve"
_ROUTER = "router"
_RAYLET = "raylet"
_NETWORK = "network"
_WORKERS = ("prefill-0", "prefill-1", "decode-0", "decode-1")
_START_TIMEOUT_S = 300.0
_STOP_GRACE_S = 90.0
_HEALED_WITHIN_S = 300.0
_WITHOUT_WORKERS_S = 200.0
"""How long requests wait for one: what a raylet takes away is all gone until there is a new one."""
_ACTORS_END_WITHIN_S = 20.0
_WHOLE_WITHIN_S = 120.0
_LOOK_AGAIN_S = 0.1
_STOPS = (FaultKind.STOP_PREFILL, FaultKind.STOP_DECODE, FaultKind.STOP_RANK, FaultKind.STOP_GCS)
_OF_ONE_RANK = (FaultKind.KILL_RANK, FaultKind.STOP_RANK)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """One process of the run record."""

    pid: int
    address: str


class RayHouse:
    """A running `tandem serve`. `start` it; `stop` it whatever happens."""

    def __init__(
        self,
        overrides: Sequence[str],
        scratch: Path,
        logs: Path,
        clock: Clock,
        *,
        num_ranks: int = 1,
        two_nodes: bool = False,
    ) -> None:
        self._clock = clock
        self._logs = logs
        self._num_ranks = num_ranks
        self._nodes = RayNodes(scratch, logs, num_ranks=num_ranks) if two_nodes else None
        self._runs = scratch / "run"
        port = free_port()
        self._door = Door(_ROUTER, f"http://127.0.0.1:{port}")
        settings = (
            *overrides,
            f"router.http_port={port}",
            "router.grpc_port=0",
            f"cluster.run_dir={self._runs}",
            "cluster.num_prefill_workers=2",
            "cluster.num_decode_workers=2",
            f"parallel.tensor_parallel_size={num_ranks}",
            f"router.no_worker_timeout_s={_WITHOUT_WORKERS_S}",
        )
        prefix: tuple[str, ...] = ()
        if self._nodes is not None:
            settings += (f"cluster.ray_address={self._nodes.address}", "worker.host=auto")
            prefix = self._nodes.prefix
        options = (part for each in settings for part in ("--set", each))
        command = (*prefix, sys.executable, "-m", "cli.main", "serve", *options)
        self._program = Program(_SERVE, command, "curl http://")
        self._serve: ManagedProcess | None = None
        self._first: dict[str, _Recorded] = {}
        self._noted: set[ProcessIdentity] = set()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._router_gone_s = -float("inf")
        """When the router was last taken away; infinity while it is."""

    @property
    def doors(self) -> Sequence[Door]:
        return (self._door,)

    async def start(self) -> None:
        """Returns when it serves. Raises ServerError."""
        if self._nodes is not None:
            await self._nodes.open()
        self._serve = await ManagedProcess.start(self._program, self._logs / "serve.log")
        await self._serve.until_ready(_START_TIMEOUT_S)
        self._first = self._record()
        self._note_processes()

    def targets(self) -> Mapping[FaultKind, Sequence[str]]:
        prefill, decode = _WORKERS[:2], _WORKERS[2:]
        targets: dict[FaultKind, Sequence[str]] = {
            FaultKind.KILL_PREFILL: prefill[:1],
            FaultKind.KILL_DECODE: decode[:1],
            FaultKind.STOP_PREFILL: prefill,
            FaultKind.STOP_DECODE: decode,
            FaultKind.KILL_ROUTER: [_ROUTER],
            FaultKind.STOP_GCS: [_GCS],
        }
        if self._num_ranks > 1:
            targets |= {kind: [prefill[0], decode[0]] for kind in _OF_ONE_RANK}
        if self._nodes is not None:
            targets |= {FaultKind.KILL_RAYLET: [_RAYLET], FaultKind.CUT_NETWORK: [_NETWORK]}
        return targets

    async def carry_out(self, fault: PlannedFault) -> float:
        alone = self._nodes is not None and fault.kind not in _STOPS[:3]
        async with self._locks["" if alone else fault.target]:
            at_s = self._clock.now()
            await self._hit(fault)
            await self._until_whole()
            if fault.target == _ROUTER:
                self._router_gone_s = self._clock.now()
            self._note_processes()
        return at_s

    def was_away(self, door: str, since_s: float) -> bool:
        return self._router_gone_s >= since_s

    def crashes(self) -> Sequence[str]:
        if self._serve is None or not self._serve.has_ended or self._serve.end_is_asked_for:
            return ()
        return (f"tandem serve ended; it said:\n{self._serve.said()}",)

    def faults_within(self) -> Counter[str]:
        return Counter()

    def memory(self) -> tuple[Memory, ...]:
        now = self._record()
        steady = {n: p.pid for n, p in now.items() if p == self._first.get(n)}
        looks = (memory_of(name, pid) for name, pid in steady.items())
        return tuple(look for look in looks if look is not None)

    async def books(self) -> tuple[Books, ...]:
        addresses = {n: p.address for n, p in self._record().items() if n != self._door.name}
        return await books_at_rest(addresses, within_s=_WHOLE_WITHIN_S, clock=self._clock)

    async def stop(self) -> Sequence[str]:
        left: list[str] = []
        if self._serve is not None:
            self._note_processes()
            # A Ray that others use as well goes on, but for our actors.
            noted = [each for each in self._noted if self._is_ours(each)]
            left += await self._serve.terminate(_STOP_GRACE_S)
            orphans = await _alive_at_last(noted)
            for process in orphans:
                process.signal(signal.SIGKILL)
            left += [f"process {process.pid} of Ray or ours" for process in orphans]
        if self._nodes is not None:
            await self._nodes.close()
        return left

    def _is_ours(self, process: ProcessIdentity) -> bool:
        return self._nodes is None or "tandem-" in command_of(process.pid).partition(" ")[0]

    # ---- processes

    def _record(self) -> dict[str, _Recorded]:
        for path in self._runs.glob("*/run.json"):
            processes = json.loads(path.read_text())["processes"]
            return {each["name"]: _Recorded(each["pid"], each["address"]) for each in processes}
        return {}

    def _processes(self) -> list[int]:
        """Ours, Ray's, and all actors."""
        assert self._serve is not None
        elsewhere = [] if self._nodes is None else self._nodes.processes()
        return tree(self._serve.pid) + elsewhere

    def _note_processes(self) -> None:
        self._noted |= {found for pid in self._processes() if (found := identity_of(pid))}

    def _find(self, called: str) -> int:
        for pid in self._processes():
            if Path(command_of(pid).partition(" ")[0]).name.startswith(called):
                return pid
        raise ServerError(f"no {called} among the processes")

    async def _hit(self, fault: PlannedFault) -> None:
        if fault.kind is FaultKind.KILL_RAYLET:
            assert self._nodes is not None
            await self._nodes.kill_raylet()
            return
        if fault.kind is FaultKind.CUT_NETWORK:
            assert self._nodes is not None
            await self._nodes.cable.cut_for(fault.for_s)
            return
        pid = await self._until_there(fault.target)
        if fault.kind in _OF_ONE_RANK:
            pid = self._find(f"ray::tandem-{fault.target}-rank-{self._num_ranks - 1}")
        if fault.kind in _STOPS:
            await _pause(pid, fault.for_s)
            return
        leader = self._record()[fault.target].pid
        if fault.target == _ROUTER:
            self._router_gone_s = float("inf")
        send_signal(pid, signal.SIGKILL)
        await self._until_there(fault.target, but_not=leader)

    async def _until_there(self, name: str, but_not: int = 0) -> int:
        """The pid of this worker's process, once the record names one, and another one than that.

        While Ray's GCS is stopped nothing can be placed, so this may take as long as that.
        """
        if name == _GCS:
            return self._find("gcs_server")
        try:
            async with asyncio.timeout(_HEALED_WITHIN_S):
                while (found := self._record().get(name)) is None or found.pid == but_not:
                    await asyncio.sleep(_LOOK_AGAIN_S)
        except TimeoutError:
            raise ServerError(f"there was no {name} for {_HEALED_WITHIN_S:g} s") from None
        return found.pid

    async def _until_whole(self) -> None:
        """All processes are there, and the router says that it serves."""
        for name in (*_WORKERS, _ROUTER):
            await self._until_there(name)
        client = OpenAIClient(Target(self._door.base_url), self._clock)
        try:
            async with asyncio.timeout(_HEALED_WITHIN_S):
                while not await _is_ready(client):
                    await asyncio.sleep(_LOOK_AGAIN_S)
        except TimeoutError:
            raise ServerError(f"the router was not ready for {_HEALED_WITHIN_S:g} s") from None
        finally:
            client.close()


async def _is_ready(client: OpenAIClient) -> bool:
    try:
        return (await client.get("/ready")).status == 200
    except (OSError, ServerError):
        return False


async def _pause(pid: int, for_s: float) -> None:
    send_signal(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(for_s)
    finally:
        send_signal(pid, signal.SIGCONT)


async def _alive_at_last(processes: Sequence[ProcessIdentity]) -> list[ProcessIdentity]:
    """Those that don't end within a while: Ray kills an actor some time after it was told to."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ACTORS_END_WITHIN_S):
            while any(process.lives() for process in processes):
                await asyncio.sleep(_LOOK_AGAIN_S)
    return [process for process in processes if process.lives()]
