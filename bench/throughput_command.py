"""`tandem bench throughput`: the engine by itself."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from bench.lengths import parse_lengths
from bench.offline import offline_config, throughput_offline
from bench.options import JsonOption, RepeatsOption, SeedOption, SetOption
from bench.progress import show_progress
from bench.report import write_json
from bench.tables import throughput_table
from bench.tandem_server import parse_settings
from bench.workload import synthetic_items, take


def throughput(
    model: Annotated[str, typer.Option(help="Model to run. Default: the configured one.")] = "",
    num_requests: Annotated[int, typer.Option(min=1, help="Requests, all at once.")] = 64,
    input_len: Annotated[
        str, typer.Option("--input-len", "--input-range", help="Prompt tokens: 128, or 32:512.")
    ] = "128",
    output_len: Annotated[
        str, typer.Option("--output-len", "--output-range", help="Output tokens: 64, or 8:256.")
    ] = "64",
    repeats: RepeatsOption = 3,
    seed: SeedOption = "0",
    overrides: SetOption = None,
    json_file: JsonOption = None,
) -> None:
    """Run the engine in this process, without a server, and report its throughput."""
    lengths = parse_lengths(input_len), parse_lengths(output_len)
    items = list(take(synthetic_items(*lengths, seed), num_requests=num_requests, duration_s=None))
    config = offline_config(model, parse_settings(overrides or []))
    report = throughput_offline(config, items, repeats=repeats, progress=show_progress)
    Console().print(throughput_table(report))
    if json_file is not None:
        write_json(json_file, report)
