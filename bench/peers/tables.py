"""The side-by-side table for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from rich.table import Table

from bench.peers.bars import Verdict
from bench.peers.report import PeersReport
from bench.peers.summary import Summary


def peers_table(report: PeersReport) -> Table:
    """A section for each figure, a row for each contender, a column for each ratio."""
    table = Table(
        title="Servers side by side",
        caption=(
            "Medians (lowest-highest of the repeats). x NAME: this row's figure over NAME's, "
            "median of repeats side by side. (+) more is better."
        ),
    )
    table.add_column("figure, contender")
    for heading in ("median", "low-high", "n", *(f"x {base}" for base in report.bases)):
        table.add_column(heading, justify="right")
    for figure, rows in groupby(report.summaries, lambda summary: summary.figure):
        table.add_row(f"[bold]{figure.title}{' (+)' if figure.more_is_better else ''}[/bold]")
        for row in rows:
            table.add_row(*_cells(row, report.bases))
        table.add_section()
    return table


def bars_table(verdicts: Sequence[Verdict]) -> Table:
    """One row for each bar."""
    table = Table(
        title="Bars", caption="A bar whose contender or peer was not measured has no value."
    )
    table.add_column("bar", overflow="fold")
    table.add_column("measured", justify="right")
    table.add_column("")
    for verdict in verdicts:
        value = "-" if verdict.value is None else number(verdict.value)
        table.add_row(verdict.text, value, _MARKS[verdict.kept])
    return table


def memory_table(report: PeersReport) -> Table:
    """One row for each process of each contender's largest run."""
    table = Table(title="Memory after the workloads", caption="PSS in MiB; the run of median sum.")
    table.add_column("contender")
    table.add_column("process", overflow="fold")
    table.add_column("MiB", justify="right")
    for contender, processes in report.processes_mib.items():
        for name, mib in processes.items():
            table.add_row(contender, name, f"{mib:.0f}")
            contender = ""
        table.add_section()
    return table


def number(value: float) -> str:
    """Three digits that count."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.3g}".rstrip(".")


_MARKS = {True: "[green]kept[/green]", False: "[red]missed[/red]", None: "not measured"}


def _cells(row: Summary, bases: Sequence[str]) -> list[str]:
    ratios = (row.ratios.get(base) for base in bases)
    return [
        f"  {row.contender}",
        number(row.median),
        f"{number(row.low)}-{number(row.high)}",
        str(row.num_repeats),
        *("" if ratio is None else f"{ratio:.2f}" for ratio in ratios),
    ]
