"""The report of `tandem bench step` as tables. Times are shown in milliseconds."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from bench.step import PARTS, StepReport


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


def breakdown_table(report: StepReport) -> Table:
    """Milliseconds by part; what is beside the next step isn't part of the sum."""
    table = Table(title="Parts of a decode step, ms")
    for heading in ("batch", "context", *PARTS, "beside"):
        table.add_column(heading, justify="right", no_wrap=True)
    for case in report.decode:
        parts = (_ms(case.parts_s[name]) for name in PARTS)
        table.add_row(str(case.batch), str(case.context), *parts, _ms(case.publish_s))
    return table


def forward_table(report: StepReport) -> Table:
    """Shares of the forward pass by kind of operation."""
    names = list(dict.fromkeys(name for case in report.decode for name in case.forward_s))
    table = Table(title="The forward pass by operation")
    for heading in ("batch", "context", *names):
        table.add_column(heading, justify="right")
    for case in report.decode:
        table.add_row(str(case.batch), str(case.context), *_shares(case.forward_s, names))
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


def _shares(seconds: Mapping[str, float], names: list[str]) -> list[str]:
    total = sum(seconds.values())
    return [f"{seconds[name] / total:.1%}" if total else "-" for name in names]


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.3f}"


def _settings(report: StepReport) -> str:
    return ", ".join(f"{name}={value}" for name, value in report.settings.items()) or "defaults"
