"""Measures a router: requests one after the other, then many streams at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.client import OpenAIClient, PreparedRequest, ServerError, Target, prepare, with_model
from bench.front.decisions import decision_s
from bench.front.process import cpu_s, listening
from bench.progress import Progress
from bench.record import RequestRecord
from bench.report import MachineReport
from bench.runner import LoopTimer, run_closed
from bench.stats import median, percentile
from bench.workload import Segment, WorkItem
from core.clock import MonotonicClock

_STEP_S = 0.01
_WARMUP = 20


@dataclass(frozen=True, slots=True)
class FrontPlan:
    """What is asked of the router."""

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
    tokens_per_cpu_s: float
    tokens_per_s: float
    stream_gap_p99_s: float


@dataclass(frozen=True, slots=True)
class FrontReport:
    """What the router costs."""

    plan: FrontPlan
    repeats: tuple[FrontRepeat, ...]
    decision_s: float
    machine: MachineReport = field(default_factory=MachineReport)


async def measure_front(
    plan: FrontPlan, settings: Sequence[str], progress: Progress
) -> FrontReport:
    """A synthetic worker and a router, each a process of its own. Raises ServerError."""
    async with (
        listening("bench.front.worker", str(_STEP_S)) as (_, worker),
        listening("bench.front.router", worker, *settings) as (router_pid, base_url),
    ):
        origin = base_url.removesuffix("/v1")
        clock = MonotonicClock()
        target = Target(origin, prompt_kind="words", ignore_eos=True)
        target = await with_model(target, clock)
        client = OpenAIClient(target, clock)
        try:
            bench = _Bench(plan, client, target, router_pid)
            await bench.first_tokens("warm-up", _WARMUP)
            repeats = []
            for number in range(plan.repeats):
                progress(f"repetition {number + 1} of {plan.repeats}")
                repeats.append(await bench.repeat(str(number)))
        finally:
            client.close()
    progress("decisions")
    return FrontReport(plan, tuple(repeats), decision_s(plan.num_workers, 1_024, clock))


class _Bench:
    def __init__(self, plan: FrontPlan, client: OpenAIClient, target: Target, pid: int) -> None:
        self._plan = plan
        self._client = client
        self._target = target
        self._pid = pid
        self._timer = LoopTimer(MonotonicClock())

    async def repeat(self, seed: str) -> FrontRepeat:
        first = await self.first_tokens(seed, self._plan.num_requests)
        begin_s, cpu_before_s = self._timer.now(), cpu_s(self._pid)
        streams = await self._send(
            self._requests(f"{seed}/streams", self._plan.num_streams, self._plan.stream_len),
            concurrency=self._plan.num_streams,
        )
        elapsed_s = self._timer.now() - begin_s
        spent_s = cpu_s(self._pid) - cpu_before_s
        num_tokens = sum(record.num_output_tokens for record in streams)
        times_s = sorted(record.ttft_s for record in first)
        return FrontRepeat(
            first_token_p50_s=median(times_s),
            first_token_p99_s=percentile(times_s, 99),
            tokens_per_cpu_s=num_tokens / spent_s,
            tokens_per_s=num_tokens / elapsed_s,
            stream_gap_p99_s=percentile(sorted(g for r in streams for g in r.itl_s), 99),
        )

    async def first_tokens(self, seed: str, number: int) -> list[RequestRecord]:
        return await self._send(self._requests(f"{seed}/first", number, 1), concurrency=1)

    def _requests(self, seed: str, number: int, output_len: int) -> list[PreparedRequest]:
        segment = Segment("front", self._plan.input_len)
        items = [WorkItem(index, (segment,), output_len) for index in range(number)]
        return [prepare(item, self._target, f"{seed}/{item.index}") for item in items]

    async def _send(
        self, requests: Sequence[PreparedRequest], *, concurrency: int
    ) -> list[RequestRecord]:
        records = await run_closed(
            requests, self._client.send, concurrency=concurrency, timer=self._timer
        )
        failed = [record.error for record in records if record.error is not None]
        if failed:
            raise ServerError(f"{len(failed)} requests failed: {failed[0]}")
        return records
