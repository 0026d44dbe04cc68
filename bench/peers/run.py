"""The whole measurement: every contender in turn, again and again.

    repeat 1   contender A: started, warmed up, its workloads, stopped   contender B ...
    repeat 2   contender A ...

Only the one whose turn it is runs. One whose start takes minutes is paused until its next turn. A
contender that cannot start is left out from then on; whatever was measured is on disk at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

from bench.client import ServerError, Target, prepare
from bench.lengths import LengthRange
from bench.load_plan import LoadPlan
from bench.load_test import warm_up
from bench.peers.arrival import measure_arrival
from bench.peers.client import PeerClient
from bench.peers.closed_loop import UnfairError, measure_closed_loop
from bench.peers.contenders import Contender, Launch, Setting
from bench.peers.memory import ServerMemory, tree_memory
from bench.peers.memory_measurement import memory_measurement, with_earlier
from bench.peers.quiet import busy_share
from bench.peers.results import Measurement, Results
from bench.peers.server import Server, first_answer, running
from bench.peers.workloads import MEMORY, ClosedLoop, Start, Workload
from bench.progress import Progress
from bench.runner import Timer
from bench.tandem_server import free_port
from bench.workload import Segment, WorkItem

_START_TIMEOUT_S = 420.0
_REQUEST_TIMEOUT_S = 300.0
# Prompts and outputs long enough to touch every kernel, few enough for a start in each round.
_WARMUP = LoadPlan(inputs=LengthRange(128, 128), outputs=LengthRange(8, 8), warmup=4)
# Above it, what is measured says as much of the neighbours as of the server.
_BUSY_LIMIT = 0.1


@dataclass(frozen=True, slots=True)
class PeersPlan:
    """Who is measured, on what, how often."""

    contenders: tuple[Contender, ...]
    workloads: tuple[Workload, ...]
    setting: Setting
    logs: Path
    repeats: int = 5
    seed: str = "0"


@dataclass
class _Live:
    """A server that is up, and how it is asked."""

    server: Server
    client: PeerClient
    launch: Launch
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    start_s: float | None = None
    """Until its first answer; None once it was told."""
    memory: ServerMemory = field(default_factory=ServerMemory)


class PeersRun:
    """Carries out a plan; owns the servers that are paused."""

    def __init__(self, plan: PeersPlan, results: Results, timer: Timer, progress: Progress) -> None:
        self._plan = plan
        self._results = results
        self._timer = timer
        self._progress = progress
        self._paused: dict[str, _Live] = {}
        self.left_out: dict[str, str] = {}
        """Why contenders are missing, by name."""

    async def run(self) -> None:
        """Measures what the results lack. Every server is gone when this returns or raises."""
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._stop_paused)
            for repeat in range(self._plan.repeats):
                for contender in self._plan.contenders:
                    if contender.name not in self.left_out:
                        await self._turn(contender, repeat)

    async def _turn(self, contender: Contender, repeat: int) -> None:
        """All that the contender lacks in this repeat."""
        todo = [w for w in self._plan.workloads if self._lacks(contender, w, repeat)]
        if not todo:
            return
        await self._look_for_quiet(contender, repeat)
        began_s = self._timer.now()
        setting = self._plan.setting
        memory = ServerMemory()
        try:
            for launch, group in groupby(todo, lambda w: contender.launch(setting, w.demand)):
                memory = memory.and_then(await self._serve(contender, launch, list(group), repeat))
        except ServerError as error:
            self.left_out[contender.name] = error.message
            self._progress(f"{contender.name} is left out: {error.message}")
            return
        took_s = self._timer.now() - began_s
        made = memory_measurement(contender.name, repeat, memory)
        earlier = self._results.get(contender.name, MEMORY, repeat)
        self._results.add(replace(with_earlier(made, earlier), took_s=took_s))
        self._progress(f"{contender.name}: repeat {repeat + 1} took {took_s:.0f} s")

    def _lacks(self, contender: Contender, workload: Workload, repeat: int) -> bool:
        if not contender.takes(workload.name) or self._results.has(
            contender.name, workload.name, repeat
        ):
            return False
        # Whoever is only paused has started once and for all
        return not (isinstance(workload, Start) and contender.name in self._paused)

    async def _serve(
        self, contender: Contender, launch: Launch, workloads: Sequence[Workload], repeat: int
    ) -> ServerMemory:
        """The workloads on one server; returns the memory it took. Raises ServerError."""
        live = self._paused.pop(contender.name, None)
        if live is None:
            live = await self._start(contender, launch)
        else:
            live.server.resume()
        try:
            for workload in workloads:
                await self._measure(contender, live, workload, repeat)
                live.memory = live.memory.loaded(tree_memory(live.server.pid))
        except BaseException:
            await live.stack.aclose()
            raise
        if contender.kept:
            live.server.pause()
            self._paused[contender.name] = live
        else:
            await live.stack.aclose()
        memory, live.memory = live.memory, ServerMemory()
        return memory

    async def _start(self, contender: Contender, launch: Launch) -> _Live:
        self._progress(f"starting {contender.name}")
        port = free_port()
        target = Target(
            base_url=f"http://127.0.0.1:{port}",
            model=contender.served_name(self._plan.setting),
            prompt_kind="words",
            ignore_eos=contender.ignore_eos,
            extra_body=contender.extra_body,
            timeout_s=_REQUEST_TIMEOUT_S,
        )
        log = self._plan.logs / f"{contender.name.replace(' ', '-')}.log"
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(
                running(launch.with_port(port), log, self._timer)
            )
            client = stack.enter_context(closing(PeerClient(target, self._timer)))
            question = prepare(WorkItem(0, (Segment("start", 16),), 4), target, self._plan.seed)
            start_s = await first_answer(
                server, client, question, self._timer, timeout_s=_START_TIMEOUT_S
            )
            # Before the warm-up: from here on what grows is the cache of prompts
            memory = ServerMemory(start=tree_memory(server.pid))
            await warm_up(client, _WARMUP, self._timer)
            return _Live(server, client, launch, stack.pop_all(), start_s, memory)
        raise AssertionError("the stack hides no error")

    async def _measure(
        self, contender: Contender, live: _Live, workload: Workload, repeat: int
    ) -> None:
        self._progress(
            f"{contender.name}, {workload.name}, run {repeat + 1} of {self._plan.repeats}"
        )
        began_s = self._timer.now()
        figures: dict[str, float] = {}
        problem: str | None = None
        try:
            figures = await self._figures(live, workload, f"{self._plan.seed}/{repeat}")
        except UnfairError as error:
            if live.server.process.returncode is not None:
                raise ServerError(f"ended in the middle\n{live.server.said()}") from None
            problem = error.message
            self._progress(f"{contender.name}, {workload.name}: {problem}")
        took_s = self._timer.now() - began_s
        self._note(contender, workload.name, repeat, figures, problem=problem, took_s=took_s)

    async def _figures(self, live: _Live, workload: Workload, seed: str) -> dict[str, float]:
        if isinstance(workload, Start):
            assert live.start_s is not None, "a paused server is not asked how it started"
            return {"start_s": live.start_s}
        if isinstance(workload, ClosedLoop):
            return await measure_closed_loop(workload, live.client, self._timer, seed)
        return await measure_arrival(workload, live.client, self._timer, seed)

    async def _look_for_quiet(self, contender: Contender, repeat: int) -> None:
        """Notes how busy the machine is before the turn, when nothing of ours runs."""
        busy = await busy_share(self._timer)
        if busy > _BUSY_LIMIT:
            self._progress(f"the machine is {busy:.0%} busy with something else")
        self._note(contender, "quiet", repeat, {"busy_share": busy})

    def _note(
        self,
        contender: Contender,
        workload: str,
        repeat: int,
        figures: dict[str, float],
        *,
        problem: str | None = None,
        took_s: float = 0.0,
    ) -> None:
        self._results.add(
            Measurement(
                contender=contender.name,
                workload=workload,
                repeat=repeat,
                figures=figures,
                problem=problem,
                took_s=took_s,
            )
        )

    async def _stop_paused(self) -> None:
        while self._paused:
            _, live = self._paused.popitem()
            await live.stack.aclose()
