"""`tandem certificates`: what `tls.*` needs, in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

certificates_app = typer.Typer(
    no_args_is_help=True, help="Certificates for mutual TLS between router and workers."
)


@certificates_app.callback()
def certificates() -> None:
    """Keeps `create` a verb of its own although it is the only one."""


@certificates_app.command()
def create(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Where the files go.")],
    days: Annotated[
        float, typer.Option(metavar="N", help="How long the certificate is valid.")
    ] = 365.0,
    name: Annotated[str, typer.Option(help="The name it is for: tls.server_name.")] = "tandem",
    also_for: Annotated[
        list[str] | None,
        typer.Option(
            "--also-for", help="Another DNS name or address; repeat for more.", show_default=False
        ),
    ] = None,
) -> None:
    """Make a certificate authority and a node's certificate in DIR.

    All processes of a cluster may share the node's files. Where DIR already has an authority, only
    the node's certificate is made anew: running processes take it for their next connections.
    Keep ca-key.pem where no worker runs: who has it can make certificates.
    """
    from cli.certificate_authority import CA, CERTIFICATE, KEY, create_certificates

    directory = directory.expanduser().absolute()
    renewed = create_certificates(directory, name=name, days=days, also_for=tuple(also_for or ()))
    what = "a certificate of the authority" if renewed else "an authority and a certificate"
    typer.echo(f"{directory} has {what}, valid for {days:g} days. For all processes:\n")
    typer.echo(
        f'[tls]\nca = "{directory / CA}"\ncertificate = "{directory / CERTIFICATE}"\n'
        f'key = "{directory / KEY}"'
    )
    if name != "tandem":
        typer.echo(f'server_name = "{name}"')
