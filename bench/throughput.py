"""What one engine does with all requests at hand at once, as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.report import SCHEMA_VERSION, MachineReport
from bench.stats import median


@dataclass(frozen=True, slots=True)
class OfflineRun:
    """One pass over the requests."""

    num_prompt_tokens: int
    num_output_tokens: int
    duration_s: float


@dataclass(frozen=True, slots=True)
class ThroughputReport:
    """Several passes over requests of the same lengths; rates are of the median time."""

    model: str
    num_requests: int
    repeats: int
    num_prompt_tokens: int
    num_output_tokens: int
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    runs: tuple[OfflineRun, ...]
    machine: MachineReport = field(default_factory=MachineReport)
    schema_version: int = SCHEMA_VERSION


def throughput_report(
    model: str, num_requests: int, runs: Sequence[OfflineRun]
) -> ThroughputReport:
    """Sums up passes that had the same tokens to compute."""
    prompt, output = runs[0].num_prompt_tokens, runs[0].num_output_tokens
    duration_s = median(run.duration_s for run in runs)
    return ThroughputReport(
        model=model,
        num_requests=num_requests,
        repeats=len(runs),
        num_prompt_tokens=prompt,
        num_output_tokens=output,
        duration_s=duration_s,
        requests_per_s=num_requests / duration_s,
        output_tokens_per_s=output / duration_s,
        total_tokens_per_s=(prompt + output) / duration_s,
        runs=tuple(runs),
    )
