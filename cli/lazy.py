"""Verbs that live in modules too slow to import for `tandem --help`."""

from __future__ import annotations

import importlib

import typer

PASS_ON = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}
"""The mounted program parses its own arguments, `--help` included."""


def mount(app: typer.Typer, name: str, module: str, *, help_text: str, panel: str) -> None:
    """Adds the verb `name`, which runs `app` of `module` with whatever follows."""

    def run(context: typer.Context) -> None:
        program = importlib.import_module(module).app
        program(args=context.args, prog_name=f"tandem {name}")

    app.command(
        name,
        help=help_text,
        context_settings=PASS_ON,
        add_help_option=False,
        rich_help_panel=panel,
    )(run)
