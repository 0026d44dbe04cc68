"""What `serve` and `demo` have in common: fetch the model once, then start everything."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable
from types import FrameType

import typer

from cli.fetch import fetch_card
from cluster.assembly import real_makers
from cluster.logs import configure_logging
from cluster.run_record import Run
from cluster.serving import serve
from core.config import Config


def launch(config: Config, use: Callable[[Run], Awaitable[None]]) -> int:
    """Serves until a signal or until `use` returns. Returns the exit status. Raises TandemError."""
    configure_logging(config.logging)
    # Until the cluster has its own way of stopping: unwind, so that a half-done fetch cleans up.
    signal.signal(signal.SIGTERM, _leave)
    card = fetch_card(config.model)
    name = config.model.served_model_name or card.name
    return asyncio.run(
        serve(config, real_makers(), model_name=name, progress=show_progress, use=use)
    )


def show_progress(name: str, line: str) -> None:
    """One line for each step of a start."""
    typer.secho(f"  {name:<12} {line}", err=True, dim=True)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
