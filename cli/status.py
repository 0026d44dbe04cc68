"""`tandem status`: what is served on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from cli.options import ConfigFile, Settings, load

if TYPE_CHECKING:
    from bench.peers.memory import ProcessMemory
    from cluster.run_record import Run

ANSWER_TIMEOUT_S = 5.0
EXIT_NOTHING = 1


def status(file: ConfigFile = None, settings: Settings = None) -> None:
    """Show every running `tandem serve` of yours: address, readiness, processes, memory, logs.

    Memory is that of all its processes, Ray's included, as PSS: what several share counts once.

    The exit status is 1 if nothing runs.
    """
    from cluster.run_record import live_runs
    from core.config import run_dir

    runs = live_runs(run_dir(load(file, settings).cluster))
    if not runs:
        typer.echo("nothing is served here")
        raise typer.Exit(EXIT_NOTHING)
    typer.echo("\n\n".join(status_text(run, readiness(run), memory_of(run)) for run in runs))


def status_text(run: Run, state: str, memory: Sequence[ProcessMemory]) -> str:
    """One run, for a person."""
    lines = [
        f"{run.run_id}  {run.model}  {state}",
        f"  HTTP   {run.http_url}/v1" if run.http_address else "  HTTP   not yet",
        f"  gRPC   {run.grpc_address or 'not yet'}",
        f"  Ray    {run.ray_address or 'not yet'}",
        f"  logs   {run.log_dir}",
    ]
    lines += [f"  {p.name:<12} pid {p.pid:<8} {p.address}" for p in run.processes]
    lines += [f"  {each.pss_mib:8.1f} MiB  pid {each.pid:<8} {each.name}" for each in memory]
    lines.append(f"  {sum(each.pss_mib for each in memory):8.1f} MiB  in all")
    return "\n".join(lines)


def memory_of(run: Run) -> tuple[ProcessMemory, ...]:
    """All processes of a run, largest first; of a Ray that it joined, only our own."""
    from bench.peers.memory import tree_memory

    roots = (run.pid, *(process.pid for process in run.processes))
    found = {memory.pid: memory for root in roots for memory in tree_memory(root)}
    return tuple(sorted(found.values(), key=lambda memory: -memory.pss_mib))


def readiness(run: Run) -> str:
    """`starting`, `ready`, or why a request would not be served now."""
    import httpx

    from cli.runs import trust_run

    if not run.http_address:
        return "starting"
    try:
        reply = httpx.get(f"{run.http_url}/ready", timeout=ANSWER_TIMEOUT_S, verify=trust_run(run))
    except httpx.HTTPError as error:
        return f"no answer ({type(error).__name__})"
    if reply.status_code == httpx.codes.OK:
        return "ready"
    return f"not ready: {reply.text}"
