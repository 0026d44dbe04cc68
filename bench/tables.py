"""Reports as tables for a terminal. Times are shown in milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table

from bench.batching import BatchingReport
from bench.comparison import ComparisonReport
from bench.exposition import Histogram
from bench.handoff import HandoffReport
from bench.kv_watch import Waste
from bench.report import PointReport, ServeReport
from bench.stats import Distribution
from bench.throughput import ThroughputReport
from core.metric_names import KV_HANDOFF_SECONDS, TRANSFER_SECONDS

_WORKERS_SAY = {
    KV_HANDOFF_SECONDS: "P's last chunk to D's first step",
    TRANSFER_SECONDS: "pull opened to last block",
}


def serve_table(reports: Sequence[ServeReport]) -> Table:
    """One row per server and load; cells of latency are p50 / p95 / p99."""
    settings = ", ".join(f"{name} {value}" for name, value in reports[0].settings.items())
    table = Table(title="Load", caption=f"{settings}. Latency in ms: p50 / p95 / p99.")
    for heading in ("server", "load"):
        table.add_column(heading, overflow="fold")
    for heading in ("ok", "req/s", "out tok/s", "TTFT", "TPOT", "ITL", "E2E"):
        table.add_column(heading, justify="right")
    if any(report.slo for report in reports):
        table.add_column("goodput/s", justify="right")
    for report in reports:
        for point in report.points:
            table.add_row(report.name, *_point_cells(point))
    return table


def error_lines(reports: Sequence[ServeReport]) -> list[str]:
    """One line per server, load and kind of error."""
    return [
        f"{report.name} {point.load.label}: {count} x {error}"
        for report in reports
        for point in report.points
        for error, count in point.errors.items()
    ]


def milliseconds(spread: Distribution | None) -> str:
    """`p50 / p95 / p99` of times in seconds, or a dash where there are none."""
    if spread is None:
        return "-"
    return " / ".join(f"{value * 1000:.1f}" for value in (spread.p50, spread.p95, spread.p99))


def _point_cells(point: PointReport) -> list[str]:
    cells = [
        point.load.label,
        f"{point.num_requests - point.num_failed}/{point.num_requests}",
        f"{point.requests_per_s:.2f}",
        f"{point.output_tokens_per_s:.1f}",
        milliseconds(point.ttft_s),
        milliseconds(point.tpot_s),
        milliseconds(point.itl_s),
        milliseconds(point.e2e_s),
    ]
    if point.goodput_rps is not None and point.slo_attainment is not None:
        cells.append(f"{point.goodput_rps:.2f} ({point.slo_attainment:.0%})")
    return cells


def throughput_table(report: ThroughputReport) -> Table:
    """One row per figure."""
    table = Table(title=f"Offline throughput, {report.model}", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("requests", f"{report.num_requests} x {report.repeats} repetitions")
    table.add_row("tokens", f"{report.num_prompt_tokens} in, {report.num_output_tokens} out")
    table.add_row("time, median", f"{report.duration_s:.2f} s")
    table.add_row("requests/s", f"{report.requests_per_s:.2f}")
    table.add_row("output tokens/s", f"{report.output_tokens_per_s:.1f}")
    table.add_row("all tokens/s", f"{report.total_tokens_per_s:.1f}")
    return table


def batching_table(reports: Sequence[BatchingReport]) -> Table:
    """One row per server: wanted output tokens per second of both strategies, and the ratio."""
    table = Table(
        title="Static against continuous batching",
        caption="Wanted output tokens per second; medians, the ratio's of pairs side by side.",
    )
    for heading in ("server", "concurrency", "requests", "runs"):
        table.add_column(heading)
    for heading in ("static tok/s", "continuous tok/s", "ratio"):
        table.add_column(heading, justify="right")
    for report in reports:
        table.add_row(
            report.name,
            str(report.concurrency),
            str(report.num_requests),
            str(len(report.runs)),
            f"{report.static_tokens_per_s:.1f}",
            f"{report.continuous_tokens_per_s:.1f}",
            f"{report.ratio:.2f}",
        )
    return table


def handoff_table(report: HandoffReport) -> Table:
    """One row per duration, one column per server."""
    table = Table(
        title=f"Handoff, {report.input_len}-token prompts",
        caption="ms: p50 / p95 / p99. Workers' figures are exact means, and quantiles by buckets.",
    )
    table.add_column("duration")
    for side in report.sides:
        table.add_column(side.name, justify="right")
    for name in _names(side.histograms_s for side in report.sides):
        cells = (_histogram_cell(side.histograms_s.get(name)) for side in report.sides)
        table.add_row(f"workers: {_WORKERS_SAY.get(name, name)}", *cells)
    for name in _names(side.reported_s for side in report.sides):
        cells = (milliseconds(side.reported_s.get(name)) for side in report.sides)
        table.add_row(f"router: {name}", *cells)
    table.add_row("client: TTFT", *(milliseconds(s.ttft_s) for s in report.sides))
    table.add_row("client: token 1 to 2", *(milliseconds(s.client_gap_s) for s in report.sides))
    return table


def _names(mappings: Iterable[Mapping[str, object]]) -> list[str]:
    """All keys, each once, in order of appearance."""
    return list(dict.fromkeys(name for mapping in mappings for name in mapping))


def _histogram_cell(seen: Histogram | None) -> str:
    if seen is None:
        return "-"
    quantiles = " / ".join(f"{seen.quantile(share) * 1000:.0f}" for share in (0.5, 0.95, 0.99))
    return f"mean {seen.mean * 1000:.1f} ({quantiles})"


def ratio_table(report: ComparisonReport) -> Table:
    """One row per other server and load: its figures over the first server's."""
    base = report.servers[0].name
    table = Table(title=f"Over {base}", caption="Medians of ratios, run by run, side by side.")
    table.add_column("server")
    table.add_column("load")
    for heading in ("out tok/s", "TTFT p50", "TPOT p50"):
        table.add_column(heading, justify="right")
    for ratio in report.ratios:
        figures = (ratio.output_tokens_per_s, ratio.ttft_p50, ratio.tpot_p50)
        cells = ("-" if figure is None else f"{figure:.2f}" for figure in figures)
        table.add_row(ratio.name, ratio.load.label, *cells)
    return table


def waste_table(waste: Waste) -> Table:
    """One row per server: KV slots that its running sequences held and had not filled."""
    table = Table(title="KV allocated and unfilled", caption="Slots per sequence, at the worst.")
    table.add_column("server")
    table.add_column("samples", justify="right")
    table.add_column("slots", justify="right")
    for name, seen in waste.items():
        table.add_row(name, str(seen.num_samples), f"{seen.max_slots_per_sequence:.1f}")
    return table
