"""Several servers under the same loads, turn by turn, so that the machine's moods hit them alike.

repeat 1   load 1: A, B   load 2: A, B ...
repeat 2   load 1: A, B   ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field

from bench.client import OpenAIClient, Target
from bench.load_plan import Load, LoadPlan
from bench.load_test import describe, reseeded, send_load, warm_up
from bench.progress import Progress
from bench.report import SCHEMA_VERSION, MachineReport, PointReport, ServeReport, point_report
from bench.runner import Timer
from bench.stats import Distribution, median


@dataclass(frozen=True, slots=True)
class Ratio:
    """One server's figures over the first one's, at one load: medians of pairs side by side."""

    name: str
    load: Load
    output_tokens_per_s: float
    ttft_p50: float | None
    tpot_p50: float | None


@dataclass(frozen=True, slots=True)
class ComparisonReport:
    """All runs of all servers. `servers` hold each load's run of median throughput."""

    servers: tuple[ServeReport, ...]
    runs: dict[str, tuple[PointReport, ...]]
    ratios: tuple[Ratio, ...]
    machine: MachineReport = field(default_factory=MachineReport)
    schema_version: int = SCHEMA_VERSION


async def compare(
    targets: Mapping[str, Target],
    plan: LoadPlan,
    loads: Sequence[Load],
    timer: Timer,
    *,
    repeats: int,
    progress: Progress,
) -> ComparisonReport:
    """Loads the named servers in turn; the first is what the others are compared with."""
    runs: dict[str, list[PointReport]] = {name: [] for name in targets}
    with ExitStack() as stack:
        clients = {
            name: stack.enter_context(closing(OpenAIClient(target, timer)))
            for name, target in targets.items()
        }
        for client in clients.values():
            await warm_up(client, plan, timer)
        for repeat in range(repeats):
            for load in loads:
                for name, client in clients.items():
                    progress(f"{name}, {load.label}, run {repeat + 1} of {repeats}")
                    records = await send_load(client, reseeded(plan, repeat), load, timer)
                    runs[name].append(point_report(load, records, plan.slo))
    return comparison_report(targets, plan, loads, runs)


def comparison_report(
    targets: Mapping[str, Target],
    plan: LoadPlan,
    loads: Sequence[Load],
    runs: Mapping[str, Sequence[PointReport]],
) -> ComparisonReport:
    """Sums up the runs: each server's repeats, load after load within each."""
    first, *others = targets
    servers = [
        ServeReport(
            name=name,
            base_url=target.base_url,
            model=target.model,
            endpoint=target.endpoint,
            settings=describe(plan, target),
            points=tuple(median_run(_at(load, runs[name])) for load in loads),
            slo=plan.slo,
        )
        for name, target in targets.items()
    ]
    return ComparisonReport(
        servers=tuple(servers),
        runs={name: tuple(points) for name, points in runs.items()},
        ratios=tuple(
            ratio(name, load, _at(load, runs[first]), _at(load, runs[name]))
            for name in others
            for load in loads
        ),
    )


def median_run(points: Sequence[PointReport]) -> PointReport:
    """The run of middle throughput; of an even number, the lower of the middle two."""
    ordered = sorted(points, key=lambda point: point.output_tokens_per_s)
    return ordered[(len(ordered) - 1) // 2]


def ratio(
    name: str, load: Load, base: Sequence[PointReport], other: Sequence[PointReport]
) -> Ratio:
    """Median of other over base, run by run."""
    return Ratio(
        name=name,
        load=load,
        output_tokens_per_s=_ratio(base, other, lambda point: point.output_tokens_per_s) or 0.0,
        ttft_p50=_ratio(base, other, lambda point: _p50(point.ttft_s)),
        tpot_p50=_ratio(base, other, lambda point: _p50(point.tpot_s)),
    )


def _ratio(
    base: Sequence[PointReport],
    other: Sequence[PointReport],
    figure: Callable[[PointReport], float | None],
) -> float | None:
    """None if no pair of runs has the figure on both sides."""
    pairs = ((figure(a), figure(b)) for a, b in zip(base, other, strict=True))
    ratios = [after / before for before, after in pairs if before and after is not None]
    return median(ratios) if ratios else None


def _p50(spread: Distribution | None) -> float | None:
    return None if spread is None else spread.p50


def _at(load: Load, points: Sequence[PointReport]) -> list[PointReport]:
    return [point for point in points if point.load == load]
