"""`tandem eval`: how good a model's answers are in the precision that it is served in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cli.options import ConfigFile, Dtype, Model, Quantization, Settings, load

if TYPE_CHECKING:
    from bench.perplexity import PerplexityReport
    from core.config import Config

eval_app = typer.Typer(no_args_is_help=True, help="How good a model is in a given precision.")


PYDOC = Path("pydoc")


@eval_app.callback()
def group() -> None:
    """How good a model is in a given precision."""


@eval_app.command()
def perplexity(
    text: Annotated[
        Path,
        typer.Option(
            help="Text to predict; of a .jsonl file, its texts or prompts; `pydoc`: Python's own "
            "language reference."
        ),
    ],
    model: Model = None,
    dtype: Dtype = None,
    quantization: Quantization = None,
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of the text, at most.")] = 20_000,
    window: Annotated[int, typer.Option(min=2, help="Tokens that are predicted together.")] = 1024,
    against: Annotated[
        Literal["float32", "bfloat16"] | None,
        typer.Option(
            help="Also measure floating weights and KV of this type, and say how much they differ.",
            show_default=False,
        ),
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the report there, as JSON.")
    ] = None,
    file: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Measure how well MODEL predicts a text, in the precision that it would be served in.

    The text is cut into windows; each token is predicted from those before it in its window, by the
    engine itself, over the paged KV cache.

    Example: tandem eval perplexity --text pydoc --quantization int8 --against float32
    """
    from bench.perplexity import PerplexityReport, measure, tokenise
    from bench.progress import show_progress
    from bench.report import write_json
    from bench.texts import pydoc_text, read_texts

    config = load(
        file,
        settings,
        model__model=model,
        model__dtype=dtype,
        model__quantization=quantization,
    )
    content = pydoc_text() if text == PYDOC else "\n\n".join(read_texts(text))
    tokens = tokenise(config, content, max_tokens)
    measured = measure(config, tokens, window=window, progress=show_progress)
    reference = None
    if against is not None:
        plain = _unquantised(config, against)
        reference = measure(plain, tokens, window=window, progress=show_progress)
    report = PerplexityReport(measured, reference)
    typer.echo(report_text(report))
    if json_file is not None:
        write_json(json_file, report)


def report_text(report: PerplexityReport) -> str:
    """A line for each measurement, and one for their difference."""
    lines = []
    for found in filter(None, (report.measured, report.reference)):
        lines.append(
            f"{found.model}, {found.precision}: perplexity {found.perplexity:.4f} "
            f"({found.num_scored:,} tokens in windows of {found.window}, {found.duration_s:.0f} s)"
        )
    if report.relative_difference is not None:
        lines.append(f"difference {report.relative_difference:+.3%}")
    return "\n".join(lines)


def _unquantised(config: Config, dtype: str) -> Config:
    changes = {"dtype": dtype, "quantization": "none", "calibration": None}
    model = config.model.model_copy(update=changes)
    cache = config.cache.model_copy(update={"kv_cache_dtype": "auto"})
    return config.model_copy(update={"model": model, "cache": cache})
