"""Options that several verbs share, and how they become a `Config`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

if TYPE_CHECKING:
    from core.config import Config

EXIT_USAGE = 2

Model: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="`default` (SmolLM2-135M-Instruct), a Hugging Face directory or hub id, or a .gguf "
        "file. Unset: what the configuration says.",
        show_default=False,
    ),
]
ConfigFile: TypeAlias = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="TOML file with settings.", show_default=False),
]
Settings: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        help="One setting; repeat for more. Wins over the file and over TANDEM_SECTION__KEY in the "
        "environment. All of them: `tandem config --reference`.",
        show_default=False,
    ),
]
Dtype: TypeAlias = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"] | None,
    typer.Option(help="Type of arithmetic (model.dtype).", show_default=False),
]
Quantization: TypeAlias = Annotated[
    Literal["none", "auto", "int8", "int4", "w8a8"] | None,
    typer.Option(
        help="Type of the layers' weights; auto: as the checkpoint has them (model.quantization).",
        show_default=False,
    ),
]
WorkerId: TypeAlias = Annotated[
    str | None,
    typer.Option("--id", help="Name of this worker; unset: made up.", show_default=False),
]
RunId: TypeAlias = Annotated[
    str | None,
    typer.Option(help="This run (see `tandem status`); unset: the newest.", show_default=False),
]
Url: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Base URL of the server; unset: the one that runs here.", show_default=False),
]


def load(file: Path | None, settings: list[str] | None, **flags: object) -> Config:
    """The configuration; `flags` (section__key=value, None: not given) win over everything."""
    from core.config import load_config

    overrides = [*(settings or ())]
    overrides += [
        f"{name.replace('__', '.')}={value}" for name, value in flags.items() if value is not None
    ]
    return load_config(file=file, overrides=overrides)
