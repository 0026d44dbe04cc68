"""`tandem usage`: what keys have used on a day, and what it costs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import date
from typing import TYPE_CHECKING, Annotated

import typer

from cli.keys import with_store
from cli.options import ConfigFile, Settings

if TYPE_CHECKING:
    from state.tenants import UsageRow

COLUMNS = (
    "key",
    "model",
    "kind",
    "requests",
    "prompt",
    "cached",
    "output",
    "weighted",
    "pinned",
    "cost",
)
"""`pinned`: tokens times hours."""


def usage(
    key: Annotated[
        str | None, typer.Option(help="Only this key's, by its id.", show_default=False)
    ] = None,
    day: Annotated[
        str | None, typer.Option(help="YYYY-MM-DD in UTC; unset: today.", show_default=False)
    ] = None,
    file: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Show tokens and cost by key and model, at the prices (tenants.prices_file) of the time."""
    from core.errors import ConfigError

    shown = day or time.strftime("%Y-%m-%d", time.gmtime())
    try:
        date.fromisoformat(shown)
    except ValueError:
        raise ConfigError(f"--day {shown!r} is no date like 2026-11-30") from None
    rows = with_store(file, settings, lambda store: store.usage(shown, key))
    typer.echo(table(rows))


def table(rows: Sequence[UsageRow]) -> str:
    """A line for each key, model and kind, in columns."""
    lines = [COLUMNS, *(_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cells(row: UsageRow) -> tuple[str, ...]:
    return (
        row.key_id,
        row.model,
        "batch" if row.batch else "online",
        str(row.requests),
        str(row.prompt_tokens),
        str(row.cached_tokens),
        str(row.output_tokens),
        str(row.weighted_tokens),
        f"{row.pinned_token_seconds / 3600:.0f}",
        f"{row.cost_nanos / 1e9:.6f}",
    )
