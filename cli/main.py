"""The `tandem` command: thin verbs, each of which imports what it needs when it runs."""

from __future__ import annotations

import sys

import typer

from cli.calibrate import calibrate
from cli.certificates import certificates_app
from cli.chat import chat
from cli.config import config
from cli.demo import demo
from cli.drain import drain
from cli.eval import eval_app
from cli.kernels import kernels_app
from cli.keys import keys_app
from cli.kv import kv_app
from cli.lazy import mount
from cli.logs import logs
from cli.model import model_app
from cli.probe import probe
from cli.processes import decode_worker, prefill_worker, router
from cli.serve import serve
from cli.status import status
from cli.stop import stop
from cli.usage import usage

START = "Start"
USE = "Use"
LOOK = "Look after"


def build_app() -> typer.Typer:
    """The whole command line."""
    app = typer.Typer(
        name="tandem",
        help="Serve large language models from two pools: prefill workers turn prompts into KV "
        "cache, decode workers turn KV cache into tokens.\n\nStart here: [bold]tandem serve "
        "default[/bold], or [bold]tandem demo[/bold] for one answer and its timings.",
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_show_locals=False,
    )
    app.command(rich_help_panel=START)(serve)
    app.command(rich_help_panel=START)(demo)
    app.command(rich_help_panel=START)(router)
    app.command("prefill-worker", rich_help_panel=START)(prefill_worker)
    app.command("decode-worker", rich_help_panel=START)(decode_worker)
    app.command(rich_help_panel=USE)(chat)
    app.command(rich_help_panel=USE)(calibrate)
    app.add_typer(eval_app, name="eval", rich_help_panel=USE)
    app.add_typer(model_app, name="model", rich_help_panel=USE)
    mount(app, "bench", "bench.cli", help_text="Measure latency and throughput.", panel=USE)
    app.add_typer(kernels_app, name="kernels", rich_help_panel=LOOK)
    app.add_typer(keys_app, name="keys", rich_help_panel=LOOK)
    app.command(rich_help_panel=LOOK)(usage)
    app.add_typer(certificates_app, name="certificates", rich_help_panel=LOOK)
    app.command(rich_help_panel=LOOK)(status)
    app.command(rich_help_panel=LOOK)(logs)
    app.add_typer(kv_app, name="kv", rich_help_panel=LOOK)
    app.command(rich_help_panel=LOOK)(drain)
    app.command(rich_help_panel=LOOK)(probe)
    app.command(rich_help_panel=LOOK)(stop)
    app.command("config", rich_help_panel=LOOK)(config)
    return app


def main() -> None:
    """Runs the command line of this process; deliberate errors become one line and a status."""
    from core.errors import ConfigError, TandemError

    try:
        build_app()()
    except ConfigError as error:
        sys.exit(_report(error, status=2))
    except TandemError as error:
        sys.exit(_report(error, status=1))


def _report(error: Exception, *, status: int) -> int:
    typer.secho(f"tandem: {error}", err=True, fg="red")
    return status


if __name__ == "__main__":
    main()
