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
from core.clock import Clock, MonotonicClock
from core.config import Config


def launch(config: Config, use: Callable[[Run], Awaitable[None]]) -> int:
    """Serves until a signal or until `use` returns. Returns the exit status. Raises TandemError."""
    configure_logging(config)
    # Until the cluster has its own way of stopping: unwind, so that a half-done fetch cleans up.
    signal.signal(signal.SIGTERM, _leave)
    card = fetch_card(config.model)
    name = config.model.served_model_name or card.name
    return asyncio.run(
        serve(config, real_makers(), model_name=name, progress=StartLog(MonotonicClock()), use=use)
    )


class StartLog:
    """Writes one line for each step of a start, with the seconds since its beginning."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.now()

    def __call__(self, name: str, line: str) -> None:
        elapsed_s = self._clock.now() - self._began
        typer.secho(f"{elapsed_s:6.1f} s  {name:<12} {line}", err=True, dim=True)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
