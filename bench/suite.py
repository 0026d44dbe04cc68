"""The default set of measurements: steps, two layouts side by side, batching, handoff.

this process, before any server    the engine by itself           shares of what the machine can do
1P+1D and combined, same threads   both up, loaded in turn        throughput, latency, KV waste
combined                           alone                          static / continuous batching
1P+1D, overlap on and off          both up, asked in turn         the handoff
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing
from dataclasses import dataclass, replace

from bench.batching import BatchingReport
from bench.batching_over_http import batching_on_server
from bench.client import OpenAIClient, Target, with_model
from bench.comparison import ComparisonReport, compare
from bench.handoff import HandoffReport
from bench.kv_watch import Waste, watched
from bench.layouts import combined, pair
from bench.lengths import LengthRange
from bench.load_plan import Load, LoadPlan
from bench.overlap import OVERLAP_OFF, OVERLAP_ON, handoff_plan, measure_handoffs
from bench.progress import Progress
from bench.report import SCHEMA_VERSION
from bench.runner import Timer
from bench.step import StepPlanOptions, StepReport
from bench.tandem_server import tandem_server
from bench.workload import synthetic_items, take

COMBINED, PAIR = "combined", "1P+1D"
_BATCHING_CONCURRENCY = 32
_HANDOFF_INPUT_LEN = 1024


STEPS = StepPlanOptions(batches=(1, 8, 32), contexts=(128, 1024), prompt_lens=(1024, 4096))
"""The steps that are measured, with as many threads as a server has."""


@dataclass(frozen=True, slots=True)
class SuitePlan:
    """How much the suite measures."""

    concurrencies: tuple[int, ...] = (1, 8, 32)
    repeats: int = 3
    num_batching_requests: int = 128
    num_handoff_requests: int = 10
    seed: str = "0"


@dataclass(frozen=True, slots=True)
class SuiteReport:
    """Everything the suite found."""

    steps: StepReport
    comparison: ComparisonReport
    kv_waste: Waste
    batching: BatchingReport
    handoff: HandoffReport
    schema_version: int = SCHEMA_VERSION


async def run_suite(
    steps: StepReport,
    plan: SuitePlan,
    settings: Mapping[str, str],
    num_threads: int,
    timer: Timer,
    progress: Progress,
) -> SuiteReport:
    """Starts the servers it needs, with the settings on top of each layout's.

    `steps` were measured before, since nothing else may run meanwhile.
    """
    layouts = {COMBINED: combined(num_threads), PAIR: pair(num_threads)}
    async with servers(
        {name: {**own, **settings} for name, own in layouts.items()}, progress
    ) as urls:
        comparison, waste = await compare_layouts(urls, plan, timer, progress)
    async with servers({COMBINED: {**layouts[COMBINED], **settings}}, progress) as urls:
        batching = await compare_strategies(urls[COMBINED], plan, timer, progress)
    handoff = await measure_handoffs(
        {OVERLAP_ON: None, OVERLAP_OFF: None},
        {**layouts[PAIR], **settings},
        handoff_plan(_HANDOFF_INPUT_LEN, plan.num_handoff_requests, plan.seed),
        timer,
        repeats=plan.repeats,
        progress=progress,
    )
    return SuiteReport(steps, comparison, waste, batching, handoff)


@asynccontextmanager
async def servers(
    layouts: Mapping[str, Mapping[str, str]], progress: Progress
) -> AsyncIterator[dict[str, str]]:
    """The named servers, all up; yields their base URLs."""
    urls: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        for name, settings in layouts.items():
            progress(f"starting {name}")
            urls[name] = await stack.enter_async_context(tandem_server(settings))
        yield urls


async def compare_layouts(
    urls: Mapping[str, str], plan: SuitePlan, timer: Timer, progress: Progress
) -> tuple[ComparisonReport, Waste]:
    """128 tokens in, 64 out, at each concurrency, the servers in turn; KV is watched meanwhile."""
    load_plan = LoadPlan(LengthRange(128, 128), LengthRange(64, 64), warmup=8, seed=plan.seed)
    loads = [Load("concurrency", concurrency) for concurrency in plan.concurrencies]
    targets = {
        name: await with_model(Target(base_url=url, ignore_eos=True), timer)
        for name, url in urls.items()
    }
    with ExitStack() as stack:
        pages = {
            name: stack.enter_context(closing(OpenAIClient(target, timer))).metrics_page
            for name, target in targets.items()
        }
        work = compare(targets, load_plan, loads, timer, repeats=plan.repeats, progress=progress)
        return await watched(work, pages)


async def compare_strategies(
    url: str, plan: SuitePlan, timer: Timer, progress: Progress
) -> BatchingReport:
    """16 tokens in, log-uniform 8 to 256 out."""
    endless = synthetic_items(LengthRange(16, 16), LengthRange(8, 256), plan.seed)
    items = list(take(endless, num_requests=plan.num_batching_requests, duration_s=None))
    report = await batching_on_server(
        Target(base_url=url, ignore_eos=True),
        items,
        timer,
        concurrency=_BATCHING_CONCURRENCY,
        repeats=plan.repeats,
        progress=progress,
    )
    return replace(report, name=COMBINED)
