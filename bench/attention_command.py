"""`tandem bench attention`: attention by itself, as shares of what this CPU can do."""

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
    from bench.attention import AttentionReport


def attention(
    batch: Annotated[str, typer.Option(help="Sequences of a decode step.")] = "1,4,32,128",
    context: Annotated[str, typer.Option(help="Tokens of each of them.")] = "128,1024,8192",
    prompt_len: Annotated[str, typer.Option(help="Prompts to prefill.")] = "1024,4096",
    chunk: Annotated[int, typer.Option(min=1, help="Prompts are also cut into these.")] = 512,
    cache_type: Annotated[
        str, typer.Option(help="float32, bfloat16, int8, float8_e4m3fn.")
    ] = "bfloat16,int8,float8_e4m3fn",
    heads: Annotated[str, typer.Option(help="Query heads, KV heads, head size.")] = "9,3,64",
    threads: Annotated[int, typer.Option(min=1, help="Compute threads.")] = 1,
    json_file: JsonOption = None,
) -> None:
    """Measure the CPU kernels of attention against the limits of this machine.

    Decode is held against the read bandwidth (bytes of KV), prefill against the multiply rate
    (the causal half's operations only); both limits are measured first, with the same threads.
    """
    report = measure_attention(
        batches=_numbers(batch),
        contexts=_numbers(context),
        prompt_lens=_numbers(prompt_len),
        chunk=chunk,
        cache_types=cache_type.split(","),
        heads=_numbers(heads),
        threads=threads,
    )
    Console().print(attention_table(report))
    if json_file is not None:
        write_json(json_file, report)


def measure_attention(
    *,
    batches: list[int],
    contexts: list[int],
    prompt_lens: list[int],
    chunk: int,
    cache_types: list[str],
    heads: list[int],
    threads: int,
) -> AttentionReport:
    """Every case once. Raises ConfigError where there are no compiled kernels."""
    import torch  # slow to import
    from tandem_kernels.cpu.library import cpu_library

    from bench.attention import AttentionBench, AttentionShape

    library = cpu_library()
    if library is None:
        raise ConfigError("there are no compiled kernels to measure")
    bench = AttentionBench(library, AttentionShape(*heads), threads)
    cases = []
    for name in cache_types:
        cache_type = getattr(torch, name)
        for size in contexts:
            for number in batches:
                show_progress(f"{name}: decode of {number} with {size} tokens")
                cases.append(bench.decode(cache_type, number, size))
        for size in prompt_lens:
            for piece in sorted({size, min(chunk, size)}):
                show_progress(f"{name}: prefill of {size} by {piece}")
                cases.append(bench.prefill(cache_type, size, piece))
    return bench.report(cases)


def attention_table(report: AttentionReport) -> Table:
    """One row a case."""
    limits = f"read {report.read_gigabytes_per_s:.1f} GB/s, multiply {report.gigaflops:.0f} GFLOP/s"
    table = Table(title="Attention", caption=f"{report.num_threads} threads; limits: {limits}")
    for heading in ("", "cache"):
        table.add_column(heading)
    for heading in ("batch", "context", "chunk", "ms", "GB/s", "GFLOP/s", "of limit"):
        table.add_column(heading, justify="right")
    for case in report.cases:
        table.add_row(
            case.kind,
            case.cache_type,
            str(case.batch),
            str(case.context),
            str(case.chunk),
            f"{case.seconds * 1e3:.3f}",
            f"{case.gigabytes_per_s:.1f}" if case.kind == "decode" else "-",
            f"{case.gigaflops:.0f}",
            f"{case.share:.0%}",
        )
    return table


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ConfigError(f"not whole numbers: {text}") from None
