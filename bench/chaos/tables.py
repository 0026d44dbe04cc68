"""A chaos run as a table for a terminal."""

from __future__ import annotations

from rich.table import Table

from bench.chaos.verdict import MAX_GROWTH, Verdict


def chaos_table(verdict: Verdict) -> Table:
    """Figures, then the faults by kind."""
    title = "Chaos: what must hold, holds" if verdict.holds else "Chaos: something did NOT hold"
    table = Table(title=title, show_header=False)
    table.add_column(overflow="fold")
    table.add_column(justify="right", overflow="fold")
    table.add_column(justify="right")
    results = ", ".join(f"{count} {name}" for name, count in sorted(verdict.results.items()))
    rows = {
        "requests": f"{verdict.num_requests} ({results})",
        "lost / doubled / wrong": _of(verdict.num_lost, verdict.num_doubled, verdict.num_wrong),
        "leaked blocks / unsound books": _of(verdict.num_leaked_blocks, verdict.num_unsound_books),
        "crashes / orphans / not healed": _of(
            verdict.num_crashes, verdict.num_orphans, verdict.num_unhealed
        ),
        "refused for a while / cut off with a router": _of(
            verdict.num_refused, verdict.num_cut_off
        ),
        "longest stall of a stream": _seconds(verdict.longest_stall_s),
        "median of the longest silence of a fault": _seconds(verdict.median_silence_s),
        "median time until the target served": _seconds(verdict.median_serves_again_s),
        f"memory growth (limit {MAX_GROWTH:.0%})": ", ".join(
            f"{name} {growth:+.1%}" for name, growth in verdict.memory_growth.items()
        )
        or "-",
    }
    for name, value in rows.items():
        table.add_row(name, value)
    table.add_section()
    table.add_row("faults", str(verdict.num_faults), "longest silence")
    for kind, count in sorted(verdict.faults_by_kind.items()):
        worst_s = verdict.worst_silence_s.get(kind)
        table.add_row(f"  {kind}", str(count), "" if worst_s is None else _seconds(worst_s))
    return table


def _of(*counts: int) -> str:
    return " / ".join(map(str, counts))


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} s"
