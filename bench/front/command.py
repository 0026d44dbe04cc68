"""`tandem bench router`: what the router itself costs."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.front.run import FrontPlan, FrontReport, measure_front
from bench.options import JsonOption, RepeatsOption, SetOption
from bench.progress import show_progress
from bench.report import write_json
from bench.stats import median
from bench.unwinding import run_unwinding


def router(
    num_requests: Annotated[int, typer.Option(min=1, help="Requests one after the other.")] = 300,
    num_streams: Annotated[int, typer.Option(min=1, help="Streams at once.")] = 64,
    stream_len: Annotated[int, typer.Option(min=1, help="Tokens of each of them.")] = 256,
    input_len: Annotated[int, typer.Option(min=1, help="Tokens of each prompt, about.")] = 128,
    repeats: RepeatsOption = 3,
    overrides: SetOption = None,
    json_file: JsonOption = None,
) -> None:
    """Measure a router before a worker that computes nothing: latency it adds, tokens a CPU second.

    The time to the first token counts everything between the client and the worker, both included.
    """
    plan = FrontPlan(num_requests, num_streams, stream_len, input_len, repeats)
    report = run_unwinding(measure_front(plan, overrides or [], show_progress))
    Console().print(front_table(report))
    if json_file is not None:
        write_json(json_file, report)


def front_table(report: FrontReport) -> Table:
    """Medians of the repetitions."""
    plan = report.plan
    table = Table(title="Router", caption=f"medians of {plan.repeats} repetitions")
    table.add_column("figure")
    table.add_column("value", justify="right")

    def of(figure: str) -> float:
        return median([getattr(repeat, figure) for repeat in report.repeats])

    rows = {
        "first token of one request, p50, ms": f"{of('first_token_p50_s') * 1e3:.2f}",
        "first token of one request, p99, ms": f"{of('first_token_p99_s') * 1e3:.2f}",
        f"{plan.num_streams} streams, tokens per CPU second": f"{of('tokens_per_cpu_s'):,.0f}",
        f"{plan.num_streams} streams, tokens per second": f"{of('tokens_per_s'):,.0f}",
        f"{plan.num_streams} streams, p99 gap, ms": f"{of('stream_gap_p99_s') * 1e3:.1f}",
        f"one decision among 2 x {plan.num_workers} workers, us": f"{report.decision_s * 1e6:.0f}",
    }
    for figure, value in rows.items():
        table.add_row(figure, value)
    return table
