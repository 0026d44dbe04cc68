"""`tandem kernels`: compile the kernels ahead of time, as for an image without a compiler."""

from __future__ import annotations

import typer

kernels_app = typer.Typer(no_args_is_help=True, help="Compile kernels ahead of time.")


@kernels_app.callback()
def kernels() -> None:
    """Keeps `build` a verb of its own although it is the only one."""


@kernels_app.command()
def build() -> None:
    """Compile the CPU kernels for this machine's processor, unless that was done before."""
    from tandem_kernels.cpu.build import Builder, BuildError

    from core.errors import ConfigError

    try:
        typer.echo(f"CPU kernels: {Builder.of_this_machine().library()}")
    except BuildError as error:
        raise ConfigError(f"the CPU kernels cannot be compiled: {error}") from error
