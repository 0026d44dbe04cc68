"""What was found, as tables for a terminal. Times are shown in milliseconds."""

from __future__ import annotations

from rich.table import Table

from bench.beside.report import BesideReport, OnlineReport
from bench.tables import milliseconds


def online_table(report: BesideReport) -> Table:
    """One row for each kind of slice."""
    plan = report.plan
    caption = (
        f"{report.rate_rps:.2f} online requests/s, {plan.inputs.low}:{plan.inputs.high} tokens in, "
        f"{plan.outputs.low}:{plan.outputs.high} out. ms: p50 / p95 / p99."
    )
    table = Table(title=f"Online requests, {report.model}", caption=caption)
    table.add_column("beside them")
    for heading in ("ok", "TTFT", "of it waiting", "of it computing", "TPOT"):
        table.add_column(heading, justify="right")
    for name, online in (
        ("no batch", report.without),
        ("a batch", report.beside),
        ("a batch, until it had ended", report.to_the_end),
    ):
        table.add_row(name, *_cells(online))
    return table


def batch_table(report: BesideReport) -> Table:
    """The bar, and the batch."""
    counts, tokens = report.counts, report.plan.chunk_tokens
    table = Table(title="The batch", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("TTFT p50 grows by", _growth(report, 50))
    table.add_row("TTFT p95 grows by", _growth(report, 95))
    table.add_row(f"one chunk of {tokens} tokens, alone", milliseconds(report.chunk_s))
    table.add_row("p95 within one chunk", "yes" if report.is_within_a_chunk else "NO")
    table.add_row("TTFT of a request less its twin's", milliseconds(report.difference_s))
    table.add_row("lines answered in slices", str(report.num_lines_in_slices))
    ended = f"{report.status}, {report.batch_s:.1f} s"
    table.add_row(f"a batch of {counts.num_lines} lines", ended)
    table.add_row(
        "its lines answered / failed / missing / repeated",
        f"{counts.num_answered} / {counts.num_failed} / {counts.num_missing} / "
        f"{counts.num_repeated}",
    )
    return table


def _cells(online: OnlineReport) -> list[str]:
    return [
        f"{online.num_requests - online.num_failed}/{online.num_requests}",
        milliseconds(online.ttft_s),
        milliseconds(online.waiting_s),
        milliseconds(online.computing_s),
        milliseconds(online.tpot_s),
    ]


def _growth(report: BesideReport, percent: int) -> str:
    growth_s = report.growth_s(percent)
    return "-" if growth_s is None else f"{growth_s * 1e3:.1f} ms"
