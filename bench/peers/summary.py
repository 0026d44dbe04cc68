"""What the measurements say: medians over repeats, and ratios of pairs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.peers.memory_measurement import START_MIB, TOTAL_MIB
from bench.peers.results import Measurement
from bench.peers.workloads import MEMORY, Arrival, ClosedLoop, Start, Workload
from bench.stats import median


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a workload that is worth a line."""

    workload: str
    name: str
    title: str
    more_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Summary:
    """One contender's figure over its repeats."""

    contender: str
    figure: Figure
    median: float
    low: float
    high: float
    num_repeats: int
    ratios: dict[str, float]
    """This contender's figure over each other's, by the other's name."""


def summaries(
    measurements: Sequence[Measurement], figures: Sequence[Figure], bases: Sequence[str]
) -> tuple[Summary, ...]:
    """Figure by figure, contender by contender in the order of the measurements."""
    names = list(dict.fromkeys(m.contender for m in measurements))
    made = [_summary(measurements, name, figure, bases) for figure in figures for name in names]
    return tuple(summary for summary in made if summary is not None)


def ratio(
    measurements: Sequence[Measurement], figure: Figure, contender: str, base: str
) -> float | None:
    """Median of contender over base, repeat by repeat; of medians if they share no repeat.

    None if one of them has no figure, or it is 0.
    """
    ours, theirs = (values(measurements, figure, name) for name in (contender, base))
    if not ours or not theirs or 0.0 in theirs.values():
        return None
    pairs = [value / theirs[repeat] for repeat, value in ours.items() if repeat in theirs]
    return median(pairs) if pairs else median(ours.values()) / median(theirs.values())


def values(measurements: Sequence[Measurement], figure: Figure, contender: str) -> dict[int, float]:
    """The contender's figures by repeat."""
    return {
        m.repeat: m.figures[figure.name]
        for m in measurements
        if (m.contender, m.workload) == (contender, figure.workload) and figure.name in m.figures
    }


def figures_of(workloads: Sequence[Workload]) -> tuple[Figure, ...]:
    """What is shown of the workloads, and of memory."""
    shown = [figure for workload in workloads for figure in _figures(workload)]
    return (
        *shown,
        Figure(MEMORY, START_MIB, "memory of all processes after the first answer, MiB"),
        Figure(MEMORY, TOTAL_MIB, "memory of all processes under load, cached prompts too, MiB"),
    )


def _figures(workload: Workload) -> list[Figure]:
    if isinstance(workload, Start):
        return [Figure(workload.name, "start_s", "start to first answer, s")]
    if isinstance(workload, ClosedLoop):
        return [_closed_loop_figure(workload)]
    return _arrival_figures(workload)


def _closed_loop_figure(workload: ClosedLoop) -> Figure:
    lengths = f"{workload.input_len} in, {workload.output_len} out"
    if workload.trace is not None:
        lengths = "the trace's lengths"
    if workload.concurrency > 1:
        title = f"concurrency {workload.concurrency}, {lengths}: output tokens/s"
        return Figure(workload.name, "output_tokens_per_s", title, more_is_better=True)
    if workload.output_len > 1:
        return Figure(workload.name, "tpot_ms", f"1 stream, {lengths}: TPOT, ms")
    title = f"prefill of {workload.input_len:,}: tokens/s"
    return Figure(workload.name, "prompt_tokens_per_s", title, more_is_better=True)


def _arrival_figures(workload: Arrival) -> list[Figure]:
    head = f"{workload.num_streams} streams, {workload.prompt_len:,}-token prompt"
    titles = {
        "median_gap_ms": "quiet median gap, ms",
        "worst_gap_ms": "worst gap, ms",
        "worst_gap_over_own_median": "worst gap over own median",
        "quiet_p99_ms": "quiet p99, ms",
        "p99_ms": "p99, ms",
        "p99_over_quiet_p99": "p99 over quiet p99",
    }
    return [Figure(workload.name, name, f"{head}: {title}") for name, title in titles.items()]


def _summary(
    measurements: Sequence[Measurement], name: str, figure: Figure, bases: Sequence[str]
) -> Summary | None:
    seen = values(measurements, figure, name)
    if not seen:
        return None
    ratios = {
        base: found
        for base in bases
        if base != name and (found := ratio(measurements, figure, name, base)) is not None
    }
    return Summary(
        contender=name,
        figure=figure,
        median=median(seen.values()),
        low=min(seen.values()),
        high=max(seen.values()),
        num_repeats=len(seen),
        ratios=ratios,
    )
