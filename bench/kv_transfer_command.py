"""`tandem bench kv-transfer`: pulls of KV between two workers, against nothing but gloo."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.kv_transfer import LINK_KINDS, KvTransferReport, TransferPlan
from bench.options import JsonOption, RepeatsOption
from bench.progress import show_progress
from bench.report import write_json
from core.clock import MonotonicClock
from core.config import TransferConfig, load_config
from core.errors import ConfigError

if TYPE_CHECKING:
    from bench.kv_transfer_deaths import DeadPeersReport

_KIB, _MIB = 1024, 1024 * 1024
_DEFAULTS = TransferConfig()


def kv_transfer(
    sizes: Annotated[
        str, typer.Option(help="KiB of a transfer, in blocks of 64.")
    ] = "64,256,1024,4096,16384,65536",
    message_kib: Annotated[
        int, typer.Option(min=64, help="As kv_transfer.max_message_bytes.")
    ] = _DEFAULTS.max_message_bytes // _KIB,
    inflight: Annotated[
        int, typer.Option(min=1, help="As kv_transfer.max_inflight_messages.")
    ] = _DEFAULTS.max_inflight_messages,
    threads: Annotated[int, typer.Option(min=1, help="Compute threads of each worker.")] = 1,
    tokens: Annotated[int, typer.Option(min=1, help="Prompt whose bytes are counted.")] = 1024,
    repeats: RepeatsOption = 15,
    dead_peers: Annotated[
        bool, typer.Option(help="Measure how soon a dead or stopped peer is noticed instead.")
    ] = False,
    json_file: JsonOption = None,
) -> None:
    """Measure pulls between a real sender and receiver, and raw gloo beside them.

    The bytes on the wire are those of the configured model.
    """
    from bench.kv_transfer_deaths import measure_dead_peers  # imports torch
    from bench.kv_transfer_run import measure_transfers
    from text.hub import resolve
    from text.model_card import load_card

    clock, console = MonotonicClock(), Console()
    if dead_peers:
        deaths = measure_dead_peers(clock, show_progress, repeats=repeats)
        console.print(dead_peers_table(deaths))
        if json_file is not None:
            write_json(json_file, deaths)
        return
    plan = TransferPlan(_sizes(sizes), message_kib * _KIB, inflight, threads, repeats)
    card = load_card(resolve(load_config().model))
    report = measure_transfers(plan, card, tokens, clock, show_progress)
    for table in (speed_table(report), cost_table(report)):
        console.print(table)
    if json_file is not None:
        write_json(json_file, report)


def speed_table(report: KvTransferReport) -> Table:
    """For each size, a row of the raw loop, of its parts, and of pulls over each kind of link."""
    plan = report.plan
    table = Table(
        title="Pulls of KV between two processes",
        caption=f"Messages of {plan.max_message_bytes / _MIB:g} MiB, {plan.max_inflight_messages} "
        f"under way. Medians of {plan.repeats} runs side by side; ratios to raw gloo, of pairs, "
        "and of the fastest run of each.",
    )
    table.add_column("size")
    table.add_column("what")
    for heading in ("MB/s", "ratio", "fastest"):
        table.add_column(heading, justify="right")
    for point in report.points:
        table.add_row(_size(point.size_bytes), "raw gloo", f"{point.raw_bytes_per_s / 1e6:.0f}")
        table.add_row("", "in parts", f"{point.parts_bytes_per_s / 1e6:.0f}")
        for kind in LINK_KINDS:
            pulls = point.pulls[kind]
            speed = f"{pulls.bytes_per_s / 1e6:.0f}"
            ratios = f"{pulls.ratio:.2f}", f"{pulls.ratio_of_best:.2f}"
            table.add_row("", f"pull over {kind}", speed, *ratios)
    return table


def cost_table(report: KvTransferReport) -> Table:
    """What a link costs to set up, and a prompt on the wire."""
    wire = report.wire
    table = Table(title="Links and bytes", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for kind, setup in report.setup.items():
        first, later = setup.first_pull_s * 1e3, setup.later_pull_s * 1e3
        table.add_row(f"first pull of a block over {kind}, link and all", f"{first:.1f} ms")
        table.add_row("later ones", f"{later:.1f} ms")
        table.add_row("setting up a link", f"{setup.link_s * 1e3:.1f} ms")
    full = next(iter(wire.bytes_by_dtype.values()))
    for dtype, size in wire.bytes_by_dtype.items():
        name = f"{wire.num_tokens} tokens in {dtype}"
        table.add_row(name, f"{size / _MIB:.2f} MiB ({size / full:.0%})")
    return table


def dead_peers_table(report: DeadPeersReport) -> Table:
    """One row per end."""
    table = Table(
        title="Until a pull under way has failed",
        caption=f"timeout_s {report.timeout_s:g}. Seconds after the signal, {report.repeats} runs.",
    )
    table.add_column("who, and how")
    table.add_column("median", justify="right")
    table.add_column("most", justify="right")
    for name, spread in report.seconds.items():
        table.add_row(name, f"{spread.p50:.3f}", f"{spread.max:.3f}")
    return table


def _size(size_bytes: int) -> str:
    mib = size_bytes / _MIB
    return f"{mib:g} MiB" if mib >= 1 else f"{size_bytes // _KIB} KiB"


def _sizes(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise ConfigError(f"--sizes {text}: must be positive numbers with commas between")
    return tuple(int(part) * _KIB for part in parts)
