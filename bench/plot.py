"""Load against latency, as a picture. matplotlib is an extra and is imported when drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.report import PointReport, ServeReport
from bench.stats import Distribution
from core.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def plot_load(reports: Sequence[ServeReport], path: Path) -> None:
    """Writes a PNG with TTFT, TPOT (p50 solid, p99 dashed) and throughput over the load.

    Raises ConfigError if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plots need matplotlib: pip install 'tandem-serve[bench]'") from None
    figure = Figure(figsize=(15, 4.5), layout="constrained")
    ttft, tpot, throughput = figure.subplots(1, 3)
    for report in reports:
        loads = [point.load.value for point in report.points]
        _draw_latency(ttft, report.name, loads, [point.ttft_s for point in report.points])
        _draw_latency(tpot, report.name, loads, [point.tpot_s for point in report.points])
        throughput.plot(loads, _tokens_per_s(report.points), marker="o", label=report.name)
    kind = reports[0].points[0].load.kind
    for axes, label in ((ttft, "TTFT, ms"), (tpot, "TPOT, ms"), (throughput, "output tokens/s")):
        axes.set(xlabel=kind, ylabel=label)
        if axes.dataLim.y1 > 0:  # from zero, where anything was drawn at all
            axes.set_ylim(0, axes.dataLim.y1 * 1.1)
        axes.grid(alpha=0.3)
        axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


def _draw_latency(
    axes: Axes, name: str, loads: list[float], spreads: list[Distribution | None]
) -> None:
    drawn = [(load, spread) for load, spread in zip(loads, spreads, strict=True) if spread]
    x = [load for load, _ in drawn]
    (line,) = axes.plot(x, [s.p50 * 1000 for _, s in drawn], marker="o", label=f"{name} p50")
    axes.plot(
        x,
        [s.p99 * 1000 for _, s in drawn],
        marker="o",
        linestyle="--",
        color=line.get_color(),
        label=f"{name} p99",
    )


def _tokens_per_s(points: Sequence[PointReport]) -> list[float]:
    return [point.output_tokens_per_s for point in points]
