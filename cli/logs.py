"""`tandem logs`: what the processes of a run wrote."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import ConfigFile, Settings, load

if TYPE_CHECKING:
    from pathlib import Path


def logs(
    name: Annotated[
        str | None,
        typer.Argument(help="router, prefill-0 ...; unset: all.", show_default=False),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Last lines of each.")] = 50,
    file: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Show the logs of the newest run, also after it has ended."""
    from cluster.run_record import latest_log_dir
    from core.config import run_dir
    from core.errors import ConfigError

    directory = latest_log_dir(run_dir(load(file, settings).cluster))
    if directory is None:
        raise ConfigError("there are no logs: nothing was served here yet")
    files = log_files(directory, name)
    if follow:
        _become_tail(files, lines)
    for path in files:
        typer.secho(f"==> {path.stem} <==", bold=True)
        for line in path.read_text(errors="replace").splitlines()[-lines or None :]:
            typer.echo(line)


def log_files(directory: Path, name: str | None) -> list[Path]:
    """The log of one process, or of all. Raises ConfigError naming those there are."""
    from core.errors import ConfigError

    files = sorted(directory.glob("*.log"))
    chosen = [path for path in files if name in (None, path.stem)]
    if not chosen:
        known = ", ".join(path.stem for path in files) or "none"
        raise ConfigError(f"no log of {name or 'any process'} in {directory}; there are: {known}")
    return chosen


def _become_tail(files: list[Path], lines: int) -> None:
    """Leaves following to the tool that does it with notifications instead of polling."""
    tail = shutil.which("tail")
    if tail is None:
        from core.errors import ConfigError

        raise ConfigError("--follow needs the `tail` command")
    os.execv(tail, ["tail", "-n", str(lines), "-F", *map(str, files)])
