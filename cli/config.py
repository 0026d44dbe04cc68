"""`tandem config`: the settings in force, and the reference of all settings."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.options import ConfigFile, Settings, load

EXIT_DIFFERS = 1


def config(
    file: ConfigFile = None,
    settings: Settings = None,
    show: Annotated[
        bool, typer.Option("--print", help="Print the settings in force, as TOML.")
    ] = False,
    reference: Annotated[
        bool, typer.Option("--reference", help="Print the reference of all settings, as Markdown.")
    ] = False,
    check: Annotated[
        Path | None,
        typer.Option(
            help="With --reference: fail if this file is not what would be printed.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show the settings in force (the default), or document all of them."""
    if not reference:
        from cli.config_toml import to_toml

        typer.echo(to_toml(load(file, settings)), nl=False)
        return
    from cli.config_reference import reference_markdown

    page = reference_markdown()
    if check is None:
        typer.echo(page, nl=False)
    elif not check.exists() or check.read_text() != page:
        typer.secho(f"{check} is out of date: run `make docs`", err=True, fg="red")
        raise typer.Exit(EXIT_DIFFERS)
