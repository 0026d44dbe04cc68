"""`tandem stop`: ends what is served on this machine."""

from __future__ import annotations

import contextlib
import os
import select
import signal
from typing import Annotated

import typer

from cli.options import ConfigFile, Settings, load

STOP_TIMEOUT_S = 15.0
"""`tandem serve` forces itself within ten seconds."""
EXIT_ALIVE = 1


def stop(
    run: Annotated[
        str | None,
        typer.Option(help="Only this run (see `tandem status`); unset: all.", show_default=False),
    ] = None,
    file: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Stop every running `tandem serve` of yours, and clean up after killed ones."""
    from cluster.litter import sweep
    from cluster.run_record import live_runs
    from core.config import run_dir

    root = run_dir(load(file, settings).cluster)
    swept = sweep(root)
    if swept:
        typer.echo(f"cleaned up after {swept} killed run(s)")
    runs = [each for each in live_runs(root) if run in (None, each.run_id)]
    if not runs:
        typer.echo("nothing to stop")
    alive = [each.run_id for each in runs if not end_process(each.pid, timeout_s=STOP_TIMEOUT_S)]
    for each in runs:
        state = "still there" if each.run_id in alive else "stopped"
        typer.echo(f"{each.run_id} {state}")
    if alive:
        raise typer.Exit(EXIT_ALIVE)


def end_process(pid: int, *, timeout_s: float) -> bool:
    """Sends SIGTERM and waits for the end; False if the process outlives `timeout_s`."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        ended, _, _ = select.select([descriptor], [], [], timeout_s)
        return bool(ended)
    finally:
        os.close(descriptor)
