"""A house that `tandem serve` runs under Ray: its supervisor heals, faults only hit.

tandem serve, two workers of each role -> its run record names every process
-> SIGKILL or SIGSTOP to a worker, SIGSTOP to Ray's GCS -> the record names the new process
-> SIGTERM to `tandem serve`; what is left in any session is killed
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.chaos.house import Door
from bench.chaos.kv_books import books_at_rest
from bench.chaos.plan import FaultKind, PlannedFault
from bench.chaos.process import ManagedProcess, ProcessIdentity, Program, identity_of, memory_of
from bench.chaos.verdict import Books, Memory
from bench.client import OpenAIClient, ServerError, Target
from bench.peers.memory import process_memory, tree
from bench.progress import Progress
from bench.tandem_server import free_port
from core.clock import Clock

_GCS = "gcs"
_SERVE = "serve"
_START_TIMEOUT_S = 240.0
_STOP_GRACE_S = 90.0
_HEALED_WITHIN_S = 90.0
_WHOLE_WITHIN_S = 60.0
_LOOK_AGAIN_S = 0.1
_STOPS = (FaultKind.STOP_PREFILL, FaultKind.STOP_DECODE, FaultKind.STOP_GCS)


@dataclass(frozen=True, slots=True)
class _Recorded:
    """One process of the run record."""

    pid: int
    address: str


class RayHouse:
    """A running `tandem serve`. `start` it; `stop` it whatever happens."""

    def __init__(
        self, overrides: Sequence[str], scratch: Path, logs: Path, clock: Clock, progress: Progress
    ) -> None:
        self._clock = clock
        self._progress = progress
        self._logs = logs
        self._runs = scratch / "run"
        port = free_port()
        self._door = Door("router", f"http://127.0.0.1:{port}")
        settings = (
            *overrides,
            f"router.http_port={port}",
            "router.grpc_port=0",
            f"cluster.run_dir={self._runs}",
            "cluster.num_prefill_workers=2",
            "cluster.num_decode_workers=2",
        )
        options = (part for each in settings for part in ("--set", each))
        command = (sys.executable, "-m", "cli.main", "serve", *options)
        self._program = Program(_SERVE, command, "curl http://")
        self._serve: ManagedProcess | None = None
        self._first: dict[str, _Recorded] = {}
        self._noted: set[ProcessIdentity] = set()
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    @property
    def doors(self) -> Sequence[Door]:
        return (self._door,)

    async def start(self) -> None:
        """Returns when it serves. Raises ServerError."""
        self._serve = await ManagedProcess.start(self._program, self._logs / "serve.log")
        await self._serve.until_ready(_START_TIMEOUT_S)
        self._first = self._record()
        self._note_processes()

    def targets(self) -> Mapping[FaultKind, Sequence[str]]:
        prefill, decode = ["prefill-0", "prefill-1"], ["decode-0", "decode-1"]
        return {
            FaultKind.KILL_PREFILL: prefill[:1],
            FaultKind.KILL_DECODE: decode[:1],
            FaultKind.STOP_PREFILL: prefill,
            FaultKind.STOP_DECODE: decode,
            FaultKind.STOP_GCS: [_GCS],
        }

    async def carry_out(self, fault: PlannedFault) -> None:
        async with self._locks[fault.target]:
            pid = self._gcs_pid() if fault.target == _GCS else await self._until_there(fault.target)
            if fault.kind in _STOPS:
                await self._pause(pid, fault.for_s)
                return
            _signal(pid, signal.SIGKILL)
            await self._until_there(fault.target, but_not=pid)
            await self._until_ready()
            self._note_processes()

    def was_away(self, door: str, since_s: float) -> bool:
        return False

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
        if self._serve is None:
            return ()
        self._note_processes()
        left = await self._serve.terminate(_STOP_GRACE_S)
        orphans = [process for process in self._noted if process.lives()]
        for process in orphans:
            process.signal(signal.SIGKILL)
        return left + [f"process {process.pid} of Ray or ours" for process in orphans]

    # ---- processes

    def _record(self) -> dict[str, _Recorded]:
        for path in self._runs.glob("*/run.json"):
            processes = json.loads(path.read_text())["processes"]
            return {each["name"]: _Recorded(each["pid"], each["address"]) for each in processes}
        return {}

    def _note_processes(self) -> None:
        assert self._serve is not None
        self._noted |= {found for pid in tree(self._serve.pid) if (found := identity_of(pid))}

    def _gcs_pid(self) -> int:
        assert self._serve is not None
        for pid in tree(self._serve.pid):
            memory = process_memory(pid)
            if memory is not None and memory.name.startswith("gcs_server"):
                return pid
        raise ServerError("no gcs_server among the processes of tandem serve")

    async def _pause(self, pid: int, for_s: float) -> None:
        _signal(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(for_s)
        finally:
            _signal(pid, signal.SIGCONT)

    async def _until_there(self, name: str, but_not: int = 0) -> int:
        """The pid of this worker's process, once the record names one, and another one than that.

        While Ray's GCS is stopped nothing can be placed, so this may take as long as that.
        """
        try:
            async with asyncio.timeout(_HEALED_WITHIN_S):
                while (found := self._record().get(name)) is None or found.pid == but_not:
                    await asyncio.sleep(_LOOK_AGAIN_S)
        except TimeoutError:
            raise ServerError(f"there was no {name} for {_HEALED_WITHIN_S:g} s") from None
        return found.pid

    async def _until_ready(self) -> None:
        client = OpenAIClient(Target(self._door.base_url), self._clock)
        try:
            while (await client.get("/ready")).status != 200:
                await asyncio.sleep(_LOOK_AGAIN_S)
        finally:
            client.close()


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
