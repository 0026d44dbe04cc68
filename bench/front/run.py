"""Measures routers: requests one after the other, then many streams at once, in turns."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.client import OpenAIClient, PreparedRequest, ServerError, prepare, with_model
from bench.front.decisions import decision_s
from bench.front.fronts import VLLM_ROUTER, Front, http_worker, tandem, vllm_router
from bench.front.process import cpu_s
from bench.peers.memory import tree
from bench.peers.places import Places
from bench.progress import Progress
from bench.record import RequestRecord
from bench.report import MachineReport
from bench.runner import LoopTimer, run_closed
from bench.stats import median, percentile
from bench.workload import Segment, WorkItem
from core.clock import MonotonicClock

_WARMUP = 20


@dataclass(frozen=True, slots=True)
class FrontPlan:
    """What is asked of a router."""

    num_requests: int = 300
    """One after the other, of one token each."""
    num_streams: int = 64
    stream_len: int = 256
    input_len: int = 128
    repeats: int = 3
    num_workers: int = 16
    """Of each role, for decisions."""


@dataclass(frozen=True, slots=True)
class FrontRepeat:
    """One repetition; seconds. A first token's time is the router's own but for two local hops and
    the client: the worker answers at once."""

    first_token_p50_s: float
    first_token_p99_s: float
    tokens_per_cpu_s: float | None
    """None where there is no router."""
    tokens_per_s: float
    stream_gap_p99_s: float


@dataclass(frozen=True, slots=True)
class FrontReport:
    """What routers cost: repetitions by name, and why one is missing."""

    plan: FrontPlan
    repeats: dict[str, list[FrontRepeat]]
    left_out: dict[str, str]
    decision_s: float
    """Of ours."""
    machine: MachineReport = field(default_factory=MachineReport)


async def measure_front(
    plan: FrontPlan, settings: Sequence[str], places: Places, progress: Progress
) -> FrontReport:
    """Workers and routers, each a process of its own. Raises ServerError."""
    repeats: dict[str, list[FrontRepeat]] = {}
    left_out: dict[str, str] = {}
    async with contextlib.AsyncExitStack() as stack:
        progress("start")
        worker = await stack.enter_async_context(http_worker())
        fronts = [await stack.enter_async_context(tandem(settings))]
        if places.is_installed(VLLM_ROUTER):
            program = places.program(VLLM_ROUTER)
            fronts.append(await stack.enter_async_context(vllm_router(program, worker)))
        else:
            left_out[VLLM_ROUTER] = f"not installed: tandem bench peers install {VLLM_ROUTER}"
        benches = [await _Bench.of(plan, front, stack) for front in (*fronts, worker)]
        for bench in benches:
            await bench.first_tokens("warm-up", _WARMUP)
        for number in range(plan.repeats):
            for bench in benches:
                progress(f"repetition {number + 1} of {plan.repeats}: {bench.name}")
                repeats.setdefault(bench.name, []).append(await bench.repeat(str(number)))
    progress("decisions")
    taken_s = decision_s(plan.num_workers, 1_024, MonotonicClock())
    return FrontReport(plan, repeats, left_out, taken_s)


class _Bench:
    def __init__(self, plan: FrontPlan, front: Front, client: OpenAIClient) -> None:
        self.name = front.name
        self._plan = plan
        self._front = front
        self._client = client
        self._timer = LoopTimer(MonotonicClock())

    @staticmethod
    async def of(plan: FrontPlan, front: Front, stack: contextlib.AsyncExitStack) -> _Bench:
        clock = MonotonicClock()
        client = OpenAIClient(await with_model(front.target, clock), clock)
        stack.callback(client.close)
        return _Bench(plan, front, client)

    async def repeat(self, seed: str) -> FrontRepeat:
        first = await self.first_tokens(seed, self._plan.num_requests)
        begin_s, cpu_before_s = self._timer.now(), self._cpu_s()
        streams = await self._send(
            self._requests(f"{seed}/streams", self._plan.num_streams, self._plan.stream_len),
            concurrency=self._plan.num_streams,
        )
        elapsed_s = self._timer.now() - begin_s
        spent_s = self._cpu_s() - cpu_before_s
        num_tokens = sum(record.num_output_tokens for record in streams)
        times_s = sorted(record.ttft_s for record in first)
        return FrontRepeat(
            first_token_p50_s=median(times_s),
            first_token_p99_s=percentile(times_s, 99),
            tokens_per_cpu_s=num_tokens / spent_s if spent_s else None,
            tokens_per_s=num_tokens / elapsed_s,
            stream_gap_p99_s=percentile(sorted(g for r in streams for g in r.itl_s), 99),
        )

    async def first_tokens(self, seed: str, number: int) -> list[RequestRecord]:
        return await self._send(self._requests(f"{seed}/first", number, 1), concurrency=1)

    def _cpu_s(self) -> float:
        """Of the router's processes; 0 without one."""
        pid = self._front.pid
        return 0.0 if pid is None else sum(cpu_s(each) for each in tree(pid))

    def _requests(self, seed: str, number: int, output_len: int) -> list[PreparedRequest]:
        segment = Segment("front", self._plan.input_len)
        items = [WorkItem(index, (segment,), output_len) for index in range(number)]
        return [prepare(item, self._client.target, f"{seed}/{item.index}") for item in items]

    async def _send(
        self, requests: Sequence[PreparedRequest], *, concurrency: int
    ) -> list[RequestRecord]:
        records = await run_closed(
            requests, self._client.send, concurrency=concurrency, timer=self._timer
        )
        failed = [record.error for record in records if record.error is not None]
        if failed:
            raise ServerError(f"{self.name}: {len(failed)} requests failed: {failed[0]}")
        return records
