"""What a measurement is doing now, for those who wait for it."""

from __future__ import annotations

from collections.abc import Callable

import typer

Progress = Callable[[str], None]
"""Told each step of a measurement before it begins."""


def show_progress(step: str) -> None:
    """One dim line on standard error."""
    typer.secho(f"  {step}", err=True, dim=True)
