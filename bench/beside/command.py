"""`tandem bench batch`: what a running batch costs online requests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import closing
from typing import Annotated

import typer
from rich.console import Console

from bench.beside.batches import HttpBatches
from bench.beside.lines import LineShape
from bench.beside.report import BesidePlan, BesideReport
from bench.beside.run import BesideBench
from bench.beside.tables import batch_table, online_table
from bench.client import OpenAIClient, Target, with_model
from bench.layouts import pair
from bench.lengths import parse_lengths
from bench.options import JsonOption, SeedOption, SetOption
from bench.progress import show_progress
from bench.report import write_json
from bench.runner import LoopTimer
from bench.stats import parse_duration_s
from bench.tandem_server import parse_settings, server_at
from bench.unwinding import run_unwinding
from core.clock import MonotonicClock
from core.config import load_config


def batch(
    base_url: Annotated[
        str | None, typer.Option(help="A running server. Default: a 1P+1D of our own.")
    ] = None,
    num_lines: Annotated[int, typer.Option(min=1, help="Requests of each batch.")] = 500,
    line_input_len: Annotated[str, typer.Option(help="Prompt tokens of a line.")] = "128",
    line_output_len: Annotated[str, typer.Option(help="Output tokens of a line.")] = "16",
    input_len: Annotated[str, typer.Option(help="Prompt tokens of online requests.")] = "128:1024",
    output_len: Annotated[str, typer.Option(help="Output tokens of online requests.")] = "32",
    load: Annotated[
        float,
        typer.Option(min=0.01, max=0.95, help="Share of one prefill worker that they take."),
    ] = 0.4,
    request_rate: Annotated[
        float | None, typer.Option(min=0.001, help="Requests per second, instead of a share.")
    ] = None,
    slice_len: Annotated[str, typer.Option("--slice", help="Length of one slice.")] = "30s",
    pairs: Annotated[int, typer.Option(min=1, help="Slices with a batch, and without.")] = 6,
    seed: SeedOption = "0",
    overrides: SetOption = None,
    json_file: JsonOption = None,
) -> None:
    """Measure online requests with and without a batch beside them, slice by slice in turn.

    TTFT's p95 may grow by one chunk of the batch's prompts, which is timed alone in the same run.
    At last a batch is left to end beside online requests. Exits with 1 if the p95 grew by more, or
    unless every line was answered once and no online request failed.
    """
    settings = parse_settings(overrides or [])
    config = load_config(overrides=[f"{name}={value}" for name, value in settings.items()])
    plan = BesidePlan(
        lines=LineShape(num_lines, parse_lengths(line_input_len), parse_lengths(line_output_len)),
        inputs=parse_lengths(input_len),
        outputs=parse_lengths(output_len),
        load=load,
        rate_rps=request_rate,
        slice_s=parse_duration_s(slice_len),
        num_pairs=pairs,
        chunk_tokens=config.scheduler.prefill_chunk_tokens,
        seed=seed,
    )
    report = run_unwinding(_measured(plan, base_url, settings))
    console = Console()
    console.print(online_table(report))
    console.print(batch_table(report))
    if json_file is not None:
        write_json(json_file, report)
    if not (report.is_whole and report.is_within_a_chunk):
        raise typer.Exit(1)


async def _measured(
    plan: BesidePlan, base_url: str | None, settings: Mapping[str, str]
) -> BesideReport:
    timer = LoopTimer(MonotonicClock())
    with tempfile.TemporaryDirectory() as directory:
        ours = {**pair(os.cpu_count() or 1), "batch.dir": directory, **settings}
        async with server_at(base_url, ours) as url:
            target = Target(base_url=url, ignore_eos=True, include_timings=True)
            client = OpenAIClient(await with_model(target, timer), timer)
            with closing(client):
                bench = BesideBench(plan, client, HttpBatches(client), timer, show_progress)
                return await bench.measure(settings)
