"""`tandem bench serve`: load on a running server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.client import Endpoint, PromptKind, Target
from bench.lengths import parse_lengths
from bench.load_plan import Load, LoadPlan, parse_sweep
from bench.load_test import load_test
from bench.plot import plot_load
from bench.prompts import parse_token_range
from bench.report import ServeReport, write_json
from bench.runner import LoopTimer
from bench.stats import parse_duration_s, parse_slo
from bench.tables import error_lines, serve_table
from bench.traces import read_trace
from core.clock import MonotonicClock
from core.errors import ConfigError


def serve(
    base_url: Annotated[
        str, typer.Option(help="The server; its API lies under the URL's path, else /v1.")
    ] = "http://127.0.0.1:8000",
    model: Annotated[str, typer.Option(help="Model to ask for. Default: the first listed.")] = "",
    endpoint: Annotated[Endpoint, typer.Option(help="Which API is loaded.")] = "completions",
    prompt_kind: Annotated[
        PromptKind | None,
        typer.Option(help="Prompts of token ids, or of words. Default: ids where allowed."),
    ] = None,
    token_range: Annotated[
        str, typer.Option(help="Token ids that prompts are made of, low:high.")
    ] = "1000:30000",
    concurrency: Annotated[
        int | None, typer.Option(help="Closed loop: requests under way at once.")
    ] = None,
    request_rate: Annotated[
        float | None, typer.Option(help="Open loop: requests per second.")
    ] = None,
    burstiness: Annotated[
        float, typer.Option(help="Gamma shape of the gaps: 1 Poisson, below 1 clumped.")
    ] = 1.0,
    trace_speed: Annotated[
        float | None, typer.Option(help="Open loop: the trace's own times, so many times as fast.")
    ] = None,
    sweep: Annotated[
        str | None, typer.Option(help="Several loads: concurrency=1,2,4 or rate=0.5,1.")
    ] = None,
    num_requests: Annotated[
        int | None, typer.Option(min=1, help="Requests per load. Default: four rounds.")
    ] = None,
    duration: Annotated[
        str | None, typer.Option(help="Time to send for, per load: 30s, 500ms.")
    ] = None,
    input_len: Annotated[
        str,
        typer.Option(
            "--input-len", "--input-range", help="Prompt tokens: 128, or log-uniform 32:512."
        ),
    ] = "128",
    output_len: Annotated[
        str,
        typer.Option(
            "--output-len", "--output-range", help="Output tokens: 64, or log-uniform 8:256."
        ),
    ] = "64",
    trace: Annotated[
        Path | None,
        typer.Option(help="Lengths and prompts from a file: Azure or lengths .csv, .jsonl, .json."),
    ] = None,
    max_input_len: Annotated[
        int | None, typer.Option(min=1, help="Cut the trace's prompts to this.")
    ] = None,
    max_output_len: Annotated[
        int | None, typer.Option(min=1, help="Cut the trace's outputs to this.")
    ] = None,
    ignore_eos: Annotated[
        bool, typer.Option(help="Ask for every output token, past the end of text.")
    ] = False,
    temperature: Annotated[float, typer.Option(min=0)] = 0.0,
    seed: Annotated[str, typer.Option(help="Equal seeds send equal requests.")] = "0",
    warmup: Annotated[int, typer.Option(min=0, help="Requests sent first and not counted.")] = 4,
    slo: Annotated[
        str | None, typer.Option(help="Limits for goodput: ttft=500ms,tpot=50ms,e2e=5s.")
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="Sent as a bearer token.")] = None,
    timeout: Annotated[str, typer.Option(help="Deadline of one request.")] = "600s",
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the report there, as JSON.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw load against latency there, as PNG.")
    ] = None,
) -> None:
    """Load a running server and report what its clients see.

    Works against Tandem and any other OpenAI-compatible server. Tokens are counted by the
    server's own usage; times are the client's.
    """
    target = Target(
        base_url=base_url.rstrip("/"),
        model=model,
        endpoint=endpoint,
        prompt_kind=prompt_kind or ("words" if endpoint == "chat" else "tokens"),
        tokens=parse_token_range(token_range),
        ignore_eos=ignore_eos,
        temperature=temperature,
        api_key=api_key,
        timeout_s=parse_duration_s(timeout),
    )
    if endpoint == "chat" and target.prompt_kind == "tokens":
        raise ConfigError("the chat endpoint takes no token ids: use --prompt-kind words")
    plan = LoadPlan(
        inputs=parse_lengths(input_len),
        outputs=parse_lengths(output_len),
        trace=None if trace is None else tuple(read_trace(trace)),
        max_input_len=max_input_len,
        max_output_len=max_output_len,
        num_requests=num_requests,
        duration_s=None if duration is None else parse_duration_s(duration),
        burstiness=burstiness,
        warmup=warmup,
        seed=seed,
        slo=None if slo is None else parse_slo(slo),
    )
    loads = chosen_loads(concurrency, request_rate, trace_speed, sweep, has_trace=trace is not None)
    report = asyncio.run(load_test(target, plan, loads, LoopTimer(MonotonicClock())))
    show(report, json_file, plot)


def chosen_loads(
    concurrency: int | None,
    request_rate: float | None,
    trace_speed: float | None,
    sweep: str | None,
    *,
    has_trace: bool,
) -> tuple[Load, ...]:
    """The one load that was asked for, or the sweep's; raises ConfigError if they disagree."""
    given = [
        Load("concurrency", concurrency) if concurrency is not None else None,
        Load("rate", request_rate) if request_rate is not None else None,
        Load("trace_speed", trace_speed) if trace_speed is not None else None,
    ]
    if trace_speed is not None and not has_trace:
        raise ConfigError("--trace-speed replays a --trace: give one")
    loads = [load for load in given if load is not None]
    if len(loads) + (sweep is not None) > 1:
        raise ConfigError("give one of --concurrency, --request-rate, --trace-speed, --sweep")
    if sweep is not None:
        return parse_sweep(sweep)
    return tuple(loads) or (Load("concurrency", 8),)


def show(report: ServeReport, json_file: Path | None, plot: Path | None) -> None:
    """Prints the table, and writes the files asked for."""
    console = Console()
    console.print(serve_table([report]))
    for line in error_lines([report]):
        console.print(f"[red]{line}[/red]")
    if json_file is not None:
        write_json(json_file, report)
    if plot is not None:
        plot_load([report], plot)
    if not any(point.num_requests > point.num_failed for point in report.points):
        raise typer.Exit(1)
