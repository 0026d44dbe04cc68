"""The side-by-side table for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
            "Medians (lowest-highest) of so many repeats. x NAME: this row's figure over NAME's, "
            "median of repeats side by side. (+) more is better."
        ),
    )
    table.add_column("figure, contender")
    for heading in ("median", "low-high", "repeats", *(f"x {base}" for base in report.bases)):
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
    table.add_column("beside it, not judged", overflow="fold")
    for verdict in verdicts:
        value = "-" if verdict.value is None else number(verdict.value)
        beside = "" if verdict.beside is None else number(verdict.beside)
        means = "" if verdict.beside is None else f" {verdict.bar.beside_means}"
        table.add_row(verdict.text, value, _MARKS[verdict.kept], beside + means)
    return table


def memory_tables(report: PeersReport) -> tuple[Table, Table]:
    """Right after the first answer, and under load: each contender's processes one by one."""
    return (
        _memory_table("Memory after the first answer", report.start_processes_mib),
        _memory_table(
            "Memory under load, cached prompts included: the most seen", report.processes_mib
        ),
    )


def _memory_table(title: str, contenders: Mapping[str, Mapping[str, float]]) -> Table:
    table = Table(title=title, caption="PSS in MiB; the run of median sum.")
    table.add_column("contender")
    table.add_column("process", overflow="fold")
    table.add_column("MiB", justify="right")
    for contender, processes in contenders.items():
        table.add_row(contender, "all", f"{sum(processes.values()):.0f}")
        for name, mib in processes.items():
            table.add_row("", name, f"{mib:.0f}")
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
