"""`tandem bench chaos`: faults of every kind under load, and a verdict."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from bench.chaos.asks import catalogue
from bench.chaos.choice_of_house import TINY, HouseKind, HouseWanted, make_house
from bench.chaos.house import House
from bench.chaos.plan import make_plan
from bench.chaos.run import ChaosPlan, run_chaos
from bench.chaos.tables import chaos_table
from bench.chaos.verdict import MAX_GROWTH, Evidence, Verdict, judge
from bench.options import JsonOption, SetOption
from bench.progress import show_progress
from bench.report import write_json
from bench.stats import parse_duration_s
from bench.unwinding import run_unwinding
from core.clock import MonotonicClock

_NUM_ASKS = 40


@dataclass(frozen=True, slots=True)
class ChaosReport:
    """What is written as JSON."""

    seed: int
    model: str
    house: str
    verdict: Verdict
    evidence: Evidence


def chaos(
    duration: Annotated[str, typer.Option(help="Time that faults happen in.")] = "600s",
    period: Annotated[str, typer.Option(help="Mean time between two faults.")] = "8s",
    seed: Annotated[int, typer.Option(help="Equal seeds plan equal faults and requests.")] = 0,
    house: Annotated[
        HouseKind,
        typer.Option(help="by-hand: every process by itself, two routers; ray: tandem serve."),
    ] = "by-hand",
    model: Annotated[
        str, typer.Option(help="tiny: a small random one, for many faults; else as for serve.")
    ] = TINY,
    clients: Annotated[int, typer.Option(min=1, help="Requests under way at once.")] = 8,
    redis_server: Annotated[
        str, typer.Option(help="The program that processes started by hand share their state in.")
    ] = "redis-server",
    two_nodes: Annotated[
        bool,
        typer.Option(
            "--two-nodes",
            help="Prefill workers in a network namespace whose cable is cut, too. Needs root.",
        ),
    ] = False,
    ranks: Annotated[
        int,
        typer.Option(
            min=1, help="Of every worker's tensor-parallel group; from 2 up, single ones are hit."
        ),
    ] = 1,
    plan_only: Annotated[
        bool, typer.Option("--plan-only", help="Print the plan and do nothing.")
    ] = False,
    logs: Annotated[Path, typer.Option(help="Where every process's output goes.")] = Path(
        "bench-results/chaos"
    ),
    judge_memory: Annotated[
        bool,
        typer.Option(
            "--judge-memory",
            help=f"Growth of a process by more than {MAX_GROWTH:.0%} fails the run, too. Short "
            "runs mostly show what a process takes up once.",
        ),
    ] = False,
    overrides: SetOption = None,
    json_file: JsonOption = None,
) -> None:
    """Kill, stop and restart what serves, under load, and compare every answer.

    Two prefill and two decode workers, and by hand two routers and a Redis. The exit status is 1 if
    an answer was lost, doubled or wrong, a block leaked, a process crashed or was left.
    """
    with tempfile.TemporaryDirectory(prefix="tandem-chaos-") as scratch:
        wanted = HouseWanted(
            kind=house,
            model=model,
            redis_server=redis_server,
            scratch=Path(scratch),
            logs=logs,
            seed=seed,
            overrides=tuple(overrides or ()),
            two_nodes=two_nodes,
            num_ranks=ranks,
        )
        made, served_name, sizes = make_house(wanted)
        faults = make_plan(
            made.targets(),
            seed=seed,
            duration_s=parse_duration_s(duration),
            period_s=parse_duration_s(period),
            in_transfers=house == "by-hand",
        )
        for fault in faults:
            typer.echo(str(fault))
        if plan_only:
            return
        asks = catalogue(served_name, sizes, seed=seed, count=_NUM_ASKS)
        plan = ChaosPlan(asks, faults, seed, parse_duration_s(duration), clients)
        evidence = run_unwinding(_run(made, plan))
    verdict = judge(evidence)
    _show(verdict, evidence)
    if json_file is not None:
        write_json(json_file, ChaosReport(seed, model, house, verdict, evidence))
    if not verdict.holds or (judge_memory and verdict.num_grown):
        raise typer.Exit(1)


async def _run(house: House, plan: ChaosPlan) -> Evidence:
    show_progress("starting the house")
    try:
        await house.start()
    except BaseException:
        await house.stop()
        raise
    return await run_chaos(house, plan, MonotonicClock(), show_progress)


def _show(verdict: Verdict, evidence: Evidence) -> None:
    """The table, and what is behind every figure in it that should be 0."""
    console = Console()
    console.print(chaos_table(verdict))
    lines = [f"{each.result}: {each.problem}" for each in evidence.outcomes if each.problem]
    lines += [f"{each.worker}: {each.problem}" for each in evidence.books if each.problem]
    lines += [
        f"{each.kind} {each.target}: {each.problem}" for each in evidence.faults if each.problem
    ]
    for line in (*lines, *evidence.crashes, *evidence.orphans):
        console.print(line, markup=False)
