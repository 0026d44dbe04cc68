"""`tandem bench step`: what a step of the engine takes, and where the time goes."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from bench.options import JsonOption, SetOption
from bench.progress import show_progress
from bench.report import write_json
from bench.step import StepPlanOptions, StepReport
from bench.step_tables import breakdown_tables, decode_table, forward_tables, prefill_table
from bench.tandem_server import parse_settings
from core.clock import MonotonicClock
from core.errors import ConfigError


def step(
    model: Annotated[str, typer.Option(help="Model to run. Default: the configured one.")] = "",
    batch: Annotated[str, typer.Option(help="Sequences of a decode step.")] = "1,8,32,128,256",
    context: Annotated[str, typer.Option(help="Tokens of each of them.")] = "128,1024,8192",
    prompt_len: Annotated[str, typer.Option(help="Prompts to prefill.")] = "128,1024,4096",
    breakdown: Annotated[bool, typer.Option(help="Show the parts of each decode step.")] = False,
    dtype: Annotated[str, typer.Option(help="As model.dtype.")] = "",
    quantization: Annotated[str, typer.Option(help="As model.quantization.")] = "",
    threads: Annotated[int, typer.Option(min=0, help="Compute threads; 0: all.")] = 0,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0)] = 1.0,
    overrides: SetOption = None,
    json_file: JsonOption = None,
) -> None:
    """Measure steps of the engine in this process, against what this machine can do.

    MBU is the share of the read bandwidth that a decode step reaches, MFU the share of the matmul
    rate that a prefill reaches; both limits are measured first, with the same threads.
    """
    plan = StepPlanOptions(
        batches=_numbers("batch", batch),
        contexts=_numbers("context", context),
        prompt_lens=_numbers("prompt-len", prompt_len),
        temperature=temperature,
        top_p=top_p,
    )
    named = {
        "model.dtype": dtype,
        "model.quantization": quantization,
        "parallel.num_threads": str(threads or ""),
    }
    settings = {name: value for name, value in named.items() if value}
    report = measure_steps(model, {**settings, **parse_settings(overrides or [])}, plan)
    show(report, breakdown=breakdown)
    if json_file is not None:
        write_json(json_file, report)


def measure_steps(model: str, settings: dict[str, str], plan: StepPlanOptions) -> StepReport:
    """Loads the engine and measures the plan's cases. Raises ConfigError."""
    from bench.step_run import StepBench, step_config  # imports torch

    config = step_config(model, settings, plan)
    return StepBench(config, plan, MonotonicClock(), show_progress).run(settings)


def show(report: StepReport, *, breakdown: bool) -> None:
    """Prints all tables."""
    console = Console()
    if report.decode:
        console.print(decode_table(report))
    if breakdown:
        for table in (*breakdown_tables(report), *forward_tables(report)):
            console.print(table)
    if report.prefill:
        console.print(prefill_table(report))
    for reason in report.skipped:
        console.print(f"skipped: {reason}")


def _numbers(name: str, text: str) -> tuple[int, ...]:
    """`1,8,32` as numbers; none at all is allowed. Raises ConfigError."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"--{name} {text}: must be positive numbers with commas between")
    return tuple(int(part) for part in parts)
