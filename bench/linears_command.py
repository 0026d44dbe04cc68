"""`tandem bench linears`: linear layers in every weight format, as shares of this CPU's limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.options import JsonOption
from bench.progress import show_progress
from bench.report import write_json
from core.errors import ConfigError

if TYPE_CHECKING:
    from bench.linears import LinearsReport

# The default model's: qkv, attention output, gate and up, down, head
_SHAPES = "960x576,576x576,3072x576,576x1536,49152x576"


def linears(
    weight_format: Annotated[
        str, typer.Option("--format", help="float32, bfloat16, int8, int4, w8a8.")
    ] = "bfloat16,int8,int4,w8a8",
    shape: Annotated[str, typer.Option(help="Outputs x inputs of layers.")] = _SHAPES,
    rows: Annotated[str, typer.Option(help="Rows of x.")] = "1,2,4,8,16,32,64,128,512,1024",
    group_size: Annotated[int, typer.Option(help="Columns of an int4 group.")] = 32,
    threads: Annotated[int, typer.Option(min=1, help="Compute threads.")] = 1,
    isa: Annotated[str, typer.Option(help="avx512, avx2, portable. Default: the fastest.")] = "",
    json_file: JsonOption = None,
) -> None:
    """Measure linear layers against reading memory and against nothing but multiplying."""
    from tandem_kernels.cpu.build import BuildError

    from bench.linears import FORMATS, measure_linears

    formats = weight_format.split(",")
    for name in formats:
        if name not in FORMATS:
            raise ConfigError(f"{name!r} is none of the formats {', '.join(FORMATS)}")
    try:
        report = measure_linears(
            formats,
            [_shape(text) for text in shape.split(",")],
            [_number(text) for text in rows.split(",")],
            group_size=group_size,
            threads=threads,
            isa=isa or None,
            progress=show_progress,
        )
    except (BuildError, ValueError) as error:
        raise ConfigError(str(error)) from error
    Console().print(linears_table(report))
    if json_file is not None:
        write_json(json_file, report)


def linears_table(report: LinearsReport) -> Table:
    """One row per layer and number of rows; shares are of the limits in the title."""
    peaks = ", ".join(f"{n} {v / 1e9:.0f}" for n, v in report.peak_operations_per_s.items())
    table = Table(
        title=f"Linear layers, {report.isa}, {report.threads} threads",
        caption=f"Limits: read {report.read_bytes_per_s / 1e9:.1f} GB/s; {peaks} G operations/s.",
    )
    for heading in ("format", "layer"):
        table.add_column(heading)
    for heading in ("rows", "us", "GB/s", "of read", "GFLOP/s", "of peak"):
        table.add_column(heading, justify="right")
    for point in report.points:
        table.add_row(
            point.format,
            f"{point.out_features}x{point.in_features}",
            str(point.rows),
            f"{point.seconds * 1e6:.0f}",
            f"{point.read_bytes_per_s / 1e9:.1f}",
            f"{point.share_of_read:.0%}",
            f"{point.operations_per_s / 1e9:.0f}",
            f"{point.share_of_operations:.0%}",
        )
    return table


def _shape(text: str) -> tuple[int, int]:
    outputs, _, inputs = text.partition("x")
    return _number(outputs), _number(inputs)


def _number(text: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise ConfigError(f"{text!r} is not a number of at least 1")
    return int(text)
