"""`tandem bench peers`: install other servers, and measure them beside Tandem."""

from __future__ import annotations

import shutil
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from rich.console import Console

from bench.options import JsonOption, RepeatsOption, SeedOption
from bench.peers.contenders import Contender, Setting, all_contenders, chosen_contenders
from bench.peers.export import check_exportable, export_gguf, export_huggingface
from bench.peers.install import install as install_peer
from bench.peers.places import PEERS, Peer, Places
from bench.peers.report import PeersReport, peers_report
from bench.peers.results import Results
from bench.peers.run import PeersPlan, PeersRun
from bench.peers.tables import bars_table, memory_tables, peers_table
from bench.peers.workloads import Workload, all_workloads, chosen
from bench.progress import show_progress
from bench.report import write_json
from bench.runner import LoopTimer
from bench.traces import read_trace
from bench.unwinding import run_unwinding
from core.clock import MonotonicClock
from core.config import kernel_cache_dir, load_config
from core.errors import ConfigError
from text.hub import resolve
from text.model_card import ModelCard, load_card

peers_app = typer.Typer(
    invoke_without_command=True,
    help="Measure Tandem beside vLLM, llama.cpp and transformers: same weights, same prompts.",
)

Named = TypeVar("Named", Contender, Workload)

# Columns for every server, where no terminal's width says otherwise.
_FILE_WIDTH = 200

EnvironmentsOption = Annotated[
    Path | None,
    typer.Option(
        "--environments", help="Where the peers' environments lie. Default: ~/.cache/tandem/peers."
    ),
]


@peers_app.callback()
def peers(
    context: typer.Context,
    environments: EnvironmentsOption = None,
    workload: Annotated[
        list[str] | None, typer.Option(help="What is measured; may be repeated. Default: all.")
    ] = None,
    contender: Annotated[
        list[str] | None, typer.Option(help="Who is measured; may be repeated. Default: all found.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Azure's trace, for the workload of its lengths.")
    ] = None,
    repeats: RepeatsOption = 5,
    num_threads: Annotated[int, typer.Option(min=2, help="Compute threads of every server.")] = 2,
    model: Annotated[str, typer.Option(help="A GGUF file, or the default model.")] = "default",
    redis_server: Annotated[
        str, typer.Option(help="The program, for Tandem's processes started by hand.")
    ] = "redis-server",
    seed: SeedOption = "0",
    directory: Annotated[
        Path, typer.Option("--out", help="Where measurements and the servers' logs go.")
    ] = Path("bench-results/peers"),
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the measurements that lie in --out.")
    ] = False,
    json_file: JsonOption = None,
) -> None:
    """Start each server in turn, again and again, and print one table with ratios.

    What was measured is written at once: an interrupted run goes on with --resume.
    """
    if context.invoked_subcommand is not None:
        return
    places = places_at(environments)
    known = all_workloads(None if trace is None else read_trace(trace))
    workloads = chosen(known, workload or [])
    wanted = chosen_contenders(contender or [])
    card = load_card(resolve(load_config(overrides=[f"model.model={model}"]).model))
    check_exportable(card)
    redis = shutil.which(redis_server)
    there, left_out = found(wanted, places, redis)
    export(card, there, places)
    setting = Setting(places, places.model(card), model, num_threads, redis or redis_server)
    settings = {
        "seed": seed,
        "num_threads": str(num_threads),
        "weights": card.weights_digest,
        "trace": "none" if trace is None else trace.name,
    }
    results = Results.begin(directory, settings, resume=resume)
    plan = PeersPlan(there, workloads, setting, directory / "logs", repeats, seed)
    run = PeersRun(plan, results, LoopTimer(MonotonicClock()), show_progress)
    run_unwinding(run.run())
    report = peers_report(
        results.measurements,
        wanted_or_measured(all_contenders(), wanted, {m.contender for m in results.measurements}),
        wanted_or_measured(known, workloads, {m.workload for m in results.measurements}),
        {**left_out, **run.left_out},
        settings,
    )
    write_json(json_file or directory / "report.json", report)
    show(report)


@peers_app.command()
def install(
    names: Annotated[list[str] | None, typer.Argument(help="Default: all.")] = None,
    environments: EnvironmentsOption = None,
) -> None:
    """Make a peer's own environment: vllm, llama.cpp, transformers or vllm-router."""
    places = places_at(environments)
    for name in names or PEERS:
        peer = known_peer(name)
        install_peer(peer, places, show_progress)
        typer.echo(f"{peer}: {places.environment(peer)}")


def places_at(environments: Path | None) -> Places:
    """The given directory, else one beside everything else that Tandem caches."""
    return Places((environments or kernel_cache_dir().parent / "peers").absolute())


def found(
    contenders: tuple[Contender, ...], places: Places, redis_server: str | None
) -> tuple[tuple[Contender, ...], dict[str, str]]:
    """Who can be measured here; and why the others cannot, by name."""
    left_out = {}
    for contender in contenders:
        if contender.peer is not None and not places.is_installed(contender.peer):
            left_out[contender.name] = f"not installed: tandem bench peers install {contender.peer}"
        elif contender.needs_redis and redis_server is None:
            left_out[contender.name] = "no redis-server: name one with --redis-server"
    return tuple(c for c in contenders if c.name not in left_out), left_out


def wanted_or_measured(
    known: Sequence[Named], wanted: Sequence[Named], measured: Set[str]
) -> tuple[Named, ...]:
    """What a report shows, in the known order: an earlier run may have measured more."""
    names = measured | {one.name for one in wanted}
    return tuple(one for one in known if one.name in names)


def export(card: ModelCard, contenders: tuple[Contender, ...], places: Places) -> None:
    """Writes the model in every format that one of the contenders reads. Raises ConfigError."""
    needed = {contender.peer for contender in contenders}
    files = places.model(card)
    if needed & {"vllm", "transformers"}:
        export_huggingface(card, files)
    if "llama.cpp" in needed:
        export_gguf(card, files, places)


def show(report: PeersReport) -> None:
    """Prints tables, and who and what is missing."""
    console = Console()
    if not console.is_terminal:
        console.width = _FILE_WIDTH
    console.print(peers_table(report))
    for table in memory_tables(report):
        console.print(table)
    console.print(bars_table(report.bars))
    if report.busiest_share > 0:
        console.print(
            f"busy with something else before a turn: {report.busiest_share:.0%} at worst"
        )
    for name, reason in report.left_out.items():
        console.print(f"left out: {name}: {reason}", markup=False)
    for problem in report.problems:
        console.print(f"problem: {problem}", style="red", markup=False)


def known_peer(name: str) -> Peer:
    """Raises ConfigError for any other name."""
    for peer in PEERS:
        if peer == name:
            return peer
    raise ConfigError(f"peer {name!r} is none of {', '.join(PEERS)}")
