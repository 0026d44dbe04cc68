"""`tandem bench chaos`: faults of every kind under load, and a verdict."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.chaos.asks import Sizes, catalogue
from bench.chaos.by_hand_house import ByHandHouse, HouseSettings
from bench.chaos.model import FIRST_TOKEN_ID, LAST_TOKEN_ID, write_tiny_model
from bench.chaos.plan import make_plan
from bench.chaos.run import ChaosPlan, run_chaos
from bench.chaos.tables import chaos_table
from bench.chaos.verdict import Evidence, Verdict, judge
from bench.options import JsonOption, SetOption
from bench.progress import show_progress
from bench.report import write_json
from bench.stats import parse_duration_s
from bench.unwinding import run_unwinding
from core.clock import MonotonicClock
from core.errors import ConfigError

TINY = "tiny"
_NAME = "chaos"
_SETTINGS = (
    "router.max_attempts=8",  # one request may meet several faults
    "router.no_worker_timeout_s=10",
    "scheduler.prefill_chunk_tokens=64",
    "scheduler.max_num_batched_tokens=128",
    "scheduler.max_num_seqs=32",
    "cache.num_blocks=320",  # few enough that sequences wait and give way
    "parallel.num_threads=1",
    "kv_transfer.verify=true",
    "kv_transfer.lease_s=10",
    "worker.drain_timeout_s=20",
    "model.max_model_len=1024",
)
_TINY_PACE = "step:delay=0.06:every=6"
"""A token each 10 ms or so: streams are long enough to be hit, and cores stay free."""
_NUM_ASKS = 40


@dataclass(frozen=True, slots=True)
class ChaosReport:
    """What is written as JSON."""

    seed: int
    model: str
    verdict: Verdict
    evidence: Evidence


def chaos(
    duration: Annotated[str, typer.Option(help="Time that faults happen in.")] = "600s",
    period: Annotated[str, typer.Option(help="Mean time between two faults.")] = "8s",
    seed: Annotated[int, typer.Option(help="Equal seeds plan equal faults and requests.")] = 0,
    model: Annotated[
        str, typer.Option(help="tiny: a small random one, for many faults; else as for serve.")
    ] = TINY,
    clients: Annotated[int, typer.Option(min=1, help="Requests under way at once.")] = 8,
    redis_server: Annotated[
        str, typer.Option(help="The program that shares the processes' state.")
    ] = "redis-server",
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Print the plan and do nothing.")
    ] = False,
    logs: Annotated[Path, typer.Option(help="Where every process's output goes.")] = Path(
        "bench-results/chaos"
    ),
    overrides: SetOption = None,
    json_file: JsonOption = None,
) -> None:
    """Kill, stop and restart what serves, under load, and compare every answer.

    Two routers, two prefill and two decode workers on one Redis, started by hand. The exit status
    is 1 if an answer was lost, doubled or wrong, a block leaked, a process crashed or was left.
    """
    with tempfile.TemporaryDirectory(prefix="tandem-chaos-") as scratch:
        settings, sizes = _settings(model, Path(scratch), redis_server, logs, seed, overrides or [])
        house = ByHandHouse(settings, MonotonicClock(), show_progress)
        duration_s = parse_duration_s(duration)
        faults = make_plan(
            house.targets(), seed=seed, duration_s=duration_s, period_s=parse_duration_s(period)
        )
        for fault in faults:
            typer.echo(str(fault))
        if plan_only:
            return
        asks = catalogue(_NAME, sizes, seed=seed, count=_NUM_ASKS)
        plan = ChaosPlan(asks, faults, seed, duration_s, clients)
        evidence = run_unwinding(_run(house, plan))
    verdict = judge(evidence)
    _show(verdict, evidence)
    if json_file is not None:
        write_json(json_file, ChaosReport(seed, model, verdict, evidence))
    if not verdict.holds:
        raise typer.Exit(1)


async def _run(house: ByHandHouse, plan: ChaosPlan) -> Evidence:
    show_progress("starting the house")
    try:
        await house.start()
    except BaseException:
        await house.stop()
        raise
    return await run_chaos(house, plan, MonotonicClock(), show_progress)


def _settings(
    model: str, scratch: Path, redis_server: str, logs: Path, seed: int, overrides: list[str]
) -> tuple[HouseSettings, Sizes]:
    program = shutil.which(redis_server)
    if program is None:
        raise ConfigError(f"no program {redis_server!r}: name one with --redis-server")
    own: tuple[str, ...] = (f"model.served_model_name={_NAME}",)
    if model == TINY:
        path = write_tiny_model(scratch / "model")
        own += (f"model.model={path}", "model.dtype=float32")
        sizes, pace = Sizes(FIRST_TOKEN_ID, LAST_TOKEN_ID), _TINY_PACE
    else:
        own += (f"model.model={model}",)
        sizes, pace = Sizes(1_000, 30_000, max_output=60), ""
    settings = (*_SETTINGS, *own, *overrides)
    return HouseSettings(program, logs, settings, pace, seed=seed), sizes


def _show(verdict: Verdict, evidence: Evidence) -> None:
    console = Console()
    console.print(chaos_table(verdict))
    for outcome in evidence.outcomes:
        if outcome.problem:
            console.print(f"{outcome.result}: {outcome.problem}", markup=False)
    for books in evidence.books:
        if books.problem:
            console.print(f"{books.worker}: {books.problem}", markup=False)
    for text in (*evidence.crashes, *evidence.orphans):
        console.print(text, markup=False)
