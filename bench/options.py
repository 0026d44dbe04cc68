"""Options that several verbs of `tandem bench` share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="section.key=value, for what this starts."),
]
JsonOption = Annotated[Path | None, typer.Option("--json", help="Write the report there, as JSON.")]
SeedOption = Annotated[str, typer.Option(help="Equal seeds send equal requests.")]
RepeatsOption = Annotated[
    int, typer.Option(min=1, help="Repetitions, side by side; medians are reported.")
]
