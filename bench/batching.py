"""Static batching against continuous batching, on the same server and the same requests.

    static       [ group of 32 ] all rows compute until the slowest ends [ next group ] ...
    continuous   32 under way; a row that ends makes room for the next request

Static batching is emulated: every request of a group asks for as many tokens as the longest of the
group, and only the tokens that were wanted count.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from bench.progress import Progress
from bench.report import SCHEMA_VERSION, MachineReport
from bench.stats import median
from bench.workload import WorkItem

Strategy = Literal["static", "continuous"]


@dataclass(frozen=True, slots=True)
class BatchingRun:
    """One pass over the requests with one strategy."""

    strategy: Strategy
    num_wanted_tokens: int
    num_computed_tokens: int
    duration_s: float
    tokens_per_s: float
    """Wanted output tokens per second."""


@dataclass(frozen=True, slots=True)
class BatchingReport:
    """Pairs of runs over the same requests, static first in each pair."""

    name: str
    concurrency: int
    num_requests: int
    runs: tuple[BatchingRun, ...]
    static_tokens_per_s: float
    continuous_tokens_per_s: float
    """Medians over the repetitions."""
    ratio: float
    """Median of continuous over static, pair by pair."""
    machine: MachineReport = field(default_factory=MachineReport)
    schema_version: int = SCHEMA_VERSION


RunBatches = Callable[[Strategy, Sequence[WorkItem]], Awaitable[float]]
"""Runs the items to their full output lengths with a strategy; returns the seconds it took."""


async def compare_batching(
    run: RunBatches,
    items: Sequence[WorkItem],
    *,
    concurrency: int,
    repeats: int,
    name: str,
    progress: Progress,
) -> BatchingReport:
    """Runs both strategies in turn, `repeats` times."""
    padded = padded_to_longest(items, concurrency)
    runs: list[BatchingRun] = []
    for repeat in range(repeats):
        progress(f"{name}, static batching, run {repeat + 1} of {repeats}")
        runs.append(_run("static", items, padded, await run("static", padded)))
        progress(f"{name}, continuous batching, run {repeat + 1} of {repeats}")
        runs.append(_run("continuous", items, items, await run("continuous", items)))
    return batching_report(runs, concurrency=concurrency, num_requests=len(items), name=name)


def batching_report(
    runs: Sequence[BatchingRun], *, concurrency: int, num_requests: int, name: str
) -> BatchingReport:
    """Sums up pairs of runs, static first in each pair."""
    static = [run.tokens_per_s for run in runs[::2]]
    continuous = [run.tokens_per_s for run in runs[1::2]]
    return BatchingReport(
        name=name,
        concurrency=concurrency,
        num_requests=num_requests,
        runs=tuple(runs),
        static_tokens_per_s=median(static),
        continuous_tokens_per_s=median(continuous),
        ratio=median(after / before for before, after in zip(static, continuous, strict=True)),
    )


def _run(
    strategy: Strategy, wanted: Sequence[WorkItem], sent: Sequence[WorkItem], duration_s: float
) -> BatchingRun:
    num_wanted = sum(item.output_len for item in wanted)
    num_computed = sum(item.output_len for item in sent)
    return BatchingRun(strategy, num_wanted, num_computed, duration_s, num_wanted / duration_s)


def padded_to_longest(items: Sequence[WorkItem], group_size: int) -> list[WorkItem]:
    """The same requests, each asking for the longest output of its group."""
    padded: list[WorkItem] = []
    for group in groups(items, group_size):
        longest = max(item.output_len for item in group)
        padded += (replace(item, output_len=longest) for item in group)
    return padded


def groups(items: Sequence[WorkItem], size: int) -> Iterator[Sequence[WorkItem]]:
    """The items in order, `size` at a time."""
    return (items[start : start + size] for start in range(0, len(items), size))
