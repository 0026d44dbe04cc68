"""`tandem bench suite`: the default set of measurements."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.options import RepeatsOption, SeedOption, SetOption
from bench.plot import plot_load
from bench.progress import show_progress
from bench.report import write_json
from bench.runner import LoopTimer
from bench.step_command import measure_steps
from bench.step_command import show as show_steps
from bench.suite import STEPS, SuitePlan, SuiteReport, run_suite
from bench.tables import batching_table, handoff_table, ratio_table, serve_table, waste_table
from bench.tandem_server import parse_settings
from bench.unwinding import run_unwinding
from core.clock import MonotonicClock


def suite(
    directory: Annotated[
        Path, typer.Option("--out", help="Where the JSON and the plot go.")
    ] = Path("bench-results"),
    concurrency: Annotated[
        list[int] | None, typer.Option(min=1, help="Loads; may be repeated. Default: 1, 8, 32.")
    ] = None,
    num_batching_requests: Annotated[int, typer.Option(min=1)] = 128,
    num_handoff_requests: Annotated[int, typer.Option(min=1)] = 10,
    repeats: RepeatsOption = 3,
    seed: SeedOption = "0",
    overrides: SetOption = None,
) -> None:
    """Measure this machine: steps, 1P+1D against combined, batching, and the handoff.

    Steps of the engine come first, as shares of what this machine reads (MBU) and multiplies (MFU),
    measured in the same run. Then it starts the servers it needs and stops them. Ratios are of runs
    side by side; medians.
    """
    plan = SuitePlan(
        concurrencies=tuple(concurrency or (1, 8, 32)),
        repeats=repeats,
        num_batching_requests=num_batching_requests,
        num_handoff_requests=num_handoff_requests,
        seed=seed,
    )
    settings, num_threads = parse_settings(overrides or []), os.cpu_count() or 1
    timer = LoopTimer(MonotonicClock())
    # The same threads and settings as the servers' will be
    steps = measure_steps("", {"parallel.num_threads": str(num_threads), **settings}, STEPS)
    report = run_unwinding(run_suite(steps, plan, settings, num_threads, timer, show_progress))
    write_json(directory / "suite.json", report)
    plot_load(report.comparison.servers, directory / "suite.png")
    show(report)


def show(report: SuiteReport) -> None:
    """Prints all tables."""
    show_steps(report.steps, breakdown=False)
    console = Console()
    console.print(serve_table(report.comparison.servers))
    console.print(ratio_table(report.comparison))
    console.print(waste_table(report.kv_waste))
    console.print(batching_table([report.batching]))
    console.print(handoff_table(report.handoff))
