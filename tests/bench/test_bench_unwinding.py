"""A measurement that is told to end still stops what it started."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
import typer

from bench.unwinding import run_unwinding


def test_sigterm_unwinds_the_measurement_and_becomes_its_exit_status() -> None:
    stopped: list[bool] = []

    async def measure() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            stopped.append(True)

    with pytest.raises(typer.Exit) as ended:
        run_unwinding(measure())
    assert ended.value.exit_code == 143
    assert stopped == [True]


def test_a_measurement_that_ends_by_itself_gives_its_result() -> None:
    async def measure() -> int:
        return 7

    assert run_unwinding(measure()) == 7
