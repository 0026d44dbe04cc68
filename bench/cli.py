"""The verbs of `tandem bench`."""

from __future__ import annotations

import typer

from bench.attention_command import attention
from bench.batching_command import batching
from bench.beside.command import batch
from bench.chaos.command import chaos
from bench.front.command import router
from bench.guard.command import guard
from bench.handoff_command import handoff
from bench.kv_transfer_command import kv_transfer
from bench.linears_command import linears
from bench.peers.command import peers_app
from bench.serve_command import serve
from bench.step_command import step
from bench.structure_command import structure
from bench.suite_command import suite
from bench.throughput_command import throughput

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Measure servers and engines: latency and throughput under load, side by side.",
)
VERBS = (
    serve,
    step,
    linears,
    attention,
    structure,
    throughput,
    batching,
    batch,
    handoff,
    suite,
    chaos,
    router,
    guard,
)
for verb in VERBS:
    app.command()(verb)
app.command("kv-transfer")(kv_transfer)
app.add_typer(peers_app, name="peers")
