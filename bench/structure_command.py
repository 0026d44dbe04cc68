"""`tandem bench structure`: what following a grammar costs a decode step."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from bench.offline import offline_config
from bench.options import JsonOption, RepeatsOption, SetOption
from bench.progress import show_progress
from bench.report import write_json
from bench.structure import StructureReport
from bench.structure_run import measure_structure
from bench.tandem_server import parse_settings


def structure(
    model: Annotated[str, typer.Option(help="Model to run. Default: the configured one.")] = "",
    batch: Annotated[int, typer.Option(min=1, help="Answers at once.")] = 8,
    num_tokens: Annotated[int, typer.Option(min=8, help="Tokens of each answer.")] = 96,
    repeats: RepeatsOption = 5,
    overrides: SetOption = None,
    json_file: JsonOption = None,
) -> None:
    """Decode steps with and without a JSON schema, in turn, in this process."""
    config = offline_config(model, parse_settings(overrides or []), max_num_seqs=batch)
    report = measure_structure(
        config, batch=batch, num_tokens=num_tokens, repeats=repeats, progress=show_progress
    )
    Console().print(_table(report))
    if json_file is not None:
        write_json(json_file, report)


def _table(report: StructureReport) -> Table:
    title = f"{report.model}: steps with a JSON schema, compiled in {report.compile_s * 1e3:.1f} ms"
    table = Table(title=title)
    for heading in ("case", "batch", "steps", "free ms", "structured ms", "ratio", "masks ms", "%"):
        table.add_column(heading, justify="left" if heading == "case" else "right")
    for case in report.cases:
        table.add_row(
            case.name,
            str(case.batch),
            str(case.num_steps),
            f"{case.free_step_s * 1e3:.2f}",
            f"{case.structured_step_s * 1e3:.2f}",
            f"{case.ratio:.3f}",
            f"{case.mask_s * 1e3:.3f}",
            f"{case.mask_share * 100:.2f}",
        )
    return table
