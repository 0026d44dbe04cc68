"""The report of `tandem bench step` as tables. Times are shown in milliseconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from bench.step import PARTS, DecodeCase, StepReport


def decode_table(report: StepReport) -> Table:
    """One row per batch and context."""
    limit = report.roofline
    table = Table(
        title=f"Decode steps, {report.model}",
        caption=f"{_settings(report)}. Reads at most {limit.read_bytes_per_s / 1e9:.1f} GB/s here.",
    )
    for heading in ("batch", "context", "step ms", "fastest", "tok/s", "GB read", "MBU"):
        table.add_column(heading, justify="right")
    table.add_column("sched+pool", justify="right")
    for case in report.decode:
        table.add_row(
            str(case.batch),
            str(case.context),
            _ms(case.step_s),
            _ms(case.fastest_step_s),
            f"{case.batch / case.step_s:.0f}",
            f"{case.read_bytes / 1e9:.3f}",
            f"{case.mbu:.0%}",
            f"{case.scheduling_share:.1%}",
        )
    return table


def breakdown_tables(report: StepReport) -> Iterator[Table]:
    """Milliseconds by part, and of what is beside the next step: a table for each context."""
    for context, cases in _by_context(report):
        table = _table_of_batches(f"Parts of a decode step, ms, context {context}", cases)
        for name in PARTS:
            table.add_row(name, *(_ms(case.parts_s[name]) for case in cases))
        table.add_row("(publish)", *(_ms(case.publish_s) for case in cases))
        yield table


def forward_tables(report: StepReport) -> Iterator[Table]:
    """Shares of the forward pass by kind of operation, where kernels tell: one for each context."""
    for context, cases in _by_context(report):
        names = dict.fromkeys(name for case in cases for name in case.forward_s)
        table = _table_of_batches(f"The forward pass by operation, context {context}", cases)
        for name in names:
            table.add_row(name, *(_share(case.forward_s, name) for case in cases))
        if names:
            yield table


def _by_context(report: StepReport) -> Iterator[tuple[int, list[DecodeCase]]]:
    for context in dict.fromkeys(case.context for case in report.decode):
        yield context, [case for case in report.decode if case.context == context]


def _table_of_batches(title: str, cases: Sequence[DecodeCase]) -> Table:
    table = Table(title=title)
    table.add_column("batch")
    for case in cases:
        table.add_column(str(case.batch), justify="right")
    return table


def prefill_table(report: StepReport) -> Table:
    """One row per prompt length."""
    limit = report.roofline
    rate = f"{limit.matmul_ops_per_s / 1e9:.0f} G operations/s in {limit.matmul_type}"
    table = Table(title=f"Prefill, {report.model}", caption=f"Multiplies at most {rate} here.")
    for heading in ("tokens", "chunks", "ms", "tok/s", "G ops", "MFU"):
        table.add_column(heading, justify="right")
    for case in report.prefill:
        table.add_row(
            str(case.prompt_len),
            str(case.num_chunks),
            f"{case.prompt_s * 1000:.1f}",
            f"{case.tokens_per_s:.0f}",
            f"{case.operations / 1e9:.0f}",
            f"{case.mfu:.0%}",
        )
    return table


def _share(seconds: Mapping[str, float], name: str) -> str:
    return f"{seconds[name] / sum(seconds.values()):.1%}" if name in seconds else "-"


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3f}" if seconds < 0.1 else f"{seconds * 1000:.1f}"


def _settings(report: StepReport) -> str:
    return ", ".join(f"{name}={value}" for name, value in report.settings.items()) or "defaults"
