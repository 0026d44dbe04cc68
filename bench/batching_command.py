"""`tandem bench batching`: static batching against continuous batching."""

from __future__ import annotations

import os
from typing import Annotated

import typer
from rich.console import Console

from bench.batching import BatchingReport
from bench.batching_over_http import batching_on_server
from bench.client import Target
from bench.layouts import combined
from bench.lengths import parse_lengths
from bench.offline import batching_offline, offline_config
from bench.options import JsonOption, RepeatsOption, SeedOption, SetOption
from bench.progress import show_progress
from bench.report import write_json
from bench.runner import LoopTimer
from bench.tables import batching_table
from bench.tandem_server import parse_settings, server_at
from bench.unwinding import run_unwinding
from bench.workload import WorkItem, synthetic_items, take
from core.clock import MonotonicClock


def batching(
    base_url: Annotated[
        str | None, typer.Option(help="A running server. Default: a combined one of our own.")
    ] = None,
    offline: Annotated[
        bool, typer.Option("--offline", help="Run the engine in this process, without a server.")
    ] = False,
    model: Annotated[str, typer.Option(help="Model to ask for. Default: the server's own.")] = "",
    concurrency: Annotated[int, typer.Option(min=1, help="Requests at once; group size.")] = 32,
    num_requests: Annotated[int, typer.Option(min=1)] = 128,
    input_len: Annotated[str, typer.Option(help="Prompt tokens.")] = "16",
    output_range: Annotated[str, typer.Option(help="Output tokens, log-uniform.")] = "8:256",
    repeats: RepeatsOption = 1,
    seed: SeedOption = "0",
    overrides: SetOption = None,
    json_file: JsonOption = None,
) -> None:
    """Compare static with continuous batching on one server.

    Static: groups of requests whose rows all compute until the slowest ends. Only the tokens that
    were wanted count.
    """
    lengths = parse_lengths(input_len), parse_lengths(output_range)
    items = list(take(synthetic_items(*lengths, seed), num_requests=num_requests, duration_s=None))
    settings = parse_settings(overrides or [])
    if offline:
        config = offline_config(model, settings, max_num_seqs=concurrency)
        report = batching_offline(
            config, items, concurrency=concurrency, repeats=repeats, progress=show_progress
        )
    else:
        settings = {**combined(os.cpu_count() or 1), **settings}
        report = run_unwinding(_on_server(base_url, settings, model, items, concurrency, repeats))
    Console().print(batching_table([report]))
    if json_file is not None:
        write_json(json_file, report)


async def _on_server(
    base_url: str | None,
    settings: dict[str, str],
    model: str,
    items: list[WorkItem],
    concurrency: int,
    repeats: int,
) -> BatchingReport:
    async with server_at(base_url, settings) as url:
        return await batching_on_server(
            Target(base_url=url, model=model, ignore_eos=True),
            items,
            LoopTimer(MonotonicClock()),
            concurrency=concurrency,
            repeats=repeats,
            progress=show_progress,
        )
