"""`tandem bench handoff`: what moving the KV costs, with and without overlap."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich.console import Console

from bench.layouts import pair
from bench.options import JsonOption, RepeatsOption, SeedOption, SetOption
from bench.overlap import OVERLAP_OFF, OVERLAP_ON, handoff_plan, measure_handoffs
from bench.progress import show_progress
from bench.report import write_json
from bench.runner import LoopTimer
from bench.tables import handoff_table
from bench.tandem_server import parse_settings
from bench.unwinding import run_unwinding
from core.clock import MonotonicClock


def handoff(
    base_url: Annotated[
        str | None, typer.Option(help="A 1P+1D server with overlap. Default: one of our own.")
    ] = None,
    base_url_off: Annotated[
        str | None, typer.Option(help="A 1P+1D server without overlap. Default: one of our own.")
    ] = None,
    input_len: Annotated[int, typer.Option(min=1, help="Prompt tokens.")] = 1024,
    num_requests: Annotated[int, typer.Option(min=1, help="Requests per repetition.")] = 10,
    repeats: RepeatsOption = 3,
    seed: SeedOption = "0",
    overrides: SetOption = None,
    json_file: JsonOption = None,
) -> None:
    """Measure the time from P's last chunk to D's first step, overlap on and off.

    One request at a time, to two 1P+1D servers in turn.
    """
    plan = handoff_plan(input_len, num_requests, seed)
    settings = {**pair(os.cpu_count() or 1), **parse_settings(overrides or [])}
    urls = {OVERLAP_ON: base_url, OVERLAP_OFF: base_url_off}
    report = run_unwinding(
        measure_handoffs(
            urls,
            settings,
            plan,
            LoopTimer(MonotonicClock()),
            repeats=repeats,
            progress=show_progress,
        )
    )
    Console().print(handoff_table(report))
    if json_file is not None:
        write_json(json_file, report)
