"""`tandem bench router`: what the router itself costs."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.front.fronts import NO_ROUTER, TANDEM, VLLM_ROUTER
from bench.front.run import FrontPlan, FrontReport, measure_front
from bench.options import JsonOption, RepeatsOption, SetOption
from bench.peers.command import EnvironmentsOption, places_at
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
    environments: EnvironmentsOption = None,
    overrides: SetOption = None,
    json_file: JsonOption = None,
) -> None:
    """Measure a router before a worker that computes nothing: latency it adds, tokens a CPU second.

    Beside it vLLM's router, where `tandem bench peers install vllm-router` has put it, and the
    client without any router. The time to the first token counts everything between the client
    and the worker, both included.
    """
    plan = FrontPlan(num_requests, num_streams, stream_len, input_len, repeats)
    work = measure_front(plan, overrides or [], places_at(environments), show_progress)
    report = run_unwinding(work)
    Console().print(front_table(report))
    if json_file is not None:
        write_json(json_file, report)


def front_table(report: FrontReport) -> Table:
    """Medians of the repetitions."""
    plan = report.plan
    missing = "".join(f"\n{name}: {reason}" for name, reason in report.left_out.items())
    table = Table(title="Router", caption=f"medians of {plan.repeats} repetitions{missing}")
    names = (TANDEM, VLLM_ROUTER, NO_ROUTER)
    table.add_column("figure")
    for name in names:
        table.add_column(name, justify="right")

    def of(name: str, figure: str, scale: float, digits: int) -> str:
        found = [getattr(repeat, figure) for repeat in report.repeats.get(name, ())]
        known = [value for value in found if value is not None]
        return f"{scale * median(known):,.{digits}f}" if known else "-"

    streams = f"{plan.num_streams} streams"
    for label, figure, scale, digits in (
        ("first token of one request, p50, ms", "first_token_p50_s", 1e3, 2),
        ("first token of one request, p99, ms", "first_token_p99_s", 1e3, 2),
        (f"{streams}, tokens per CPU second", "tokens_per_cpu_s", 1, 0),
        (f"{streams}, tokens per second", "tokens_per_s", 1, 0),
        (f"{streams}, p99 gap, ms", "stream_gap_p99_s", 1e3, 1),
    ):
        table.add_row(label, *(of(name, figure, scale, digits) for name in names))
    decision = f"one decision among 2 x {plan.num_workers} workers, us"
    table.add_row(decision, f"{report.decision_s * 1e6:.0f}", "-", "-")
    return table
