"""Runs a measurement so that whatever ends it, the servers it started are stopped."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import TypeVar

import typer

T = TypeVar("T")


def run_unwinding(work: Coroutine[object, object, T]) -> T:
    """`asyncio.run`, with SIGTERM cancelling the work as Ctrl-C does. Raises typer.Exit then."""
    try:
        return asyncio.run(_cancelled_by_sigterm(work))
    except asyncio.CancelledError:
        raise typer.Exit(128 + signal.SIGTERM) from None


async def _cancelled_by_sigterm(work: Coroutine[object, object, T]) -> T:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await work
