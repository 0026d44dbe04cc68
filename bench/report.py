"""What a load test found, as values that become a table, a JSON file or a plot.

All times in the report are seconds, all rates per second.
"""

from __future__ import annotations

import os
import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter

from bench.load_plan import Load
from bench.record import RequestRecord
from bench.stats import Distribution, Slo, distribution

SCHEMA_VERSION = 1

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PointReport:
    """One server under one load. Times and token counts are of the requests that succeeded."""

    load: Load
    num_requests: int
    num_failed: int
    errors: dict[str, int]
    duration_s: float
    """From the first request sent to the last answer ended."""
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    total_tokens_per_s: float
    ttft_s: Distribution | None
    tpot_s: Distribution | None
    itl_s: Distribution | None
    e2e_s: Distribution | None
    goodput_rps: float | None
    """Requests per second that kept every limit; None without limits."""
    slo_attainment: float | None
    """Share of all requests, failed ones included, that kept every limit."""


@dataclass(frozen=True, slots=True)
class MachineReport:
    """Where the client ran."""

    system: str = field(default_factory=platform.platform)
    python: str = field(default_factory=platform.python_version)
    num_cores: int = field(default_factory=lambda: os.cpu_count() or 0)


@dataclass(frozen=True, slots=True)
class ServeReport:
    """One server under one or several loads."""

    name: str
    base_url: str
    model: str
    endpoint: str
    settings: dict[str, str]
    points: tuple[PointReport, ...]
    slo: Slo | None = None
    machine: MachineReport = field(default_factory=MachineReport)
    schema_version: int = SCHEMA_VERSION


def point_report(load: Load, records: Sequence[RequestRecord], slo: Slo | None) -> PointReport:
    """Sums up the records of one run."""
    good = [record for record in records if record.ok]
    duration_s = _duration_s(records)
    num_prompt_tokens = sum(record.num_prompt_tokens for record in good)
    num_output_tokens = sum(record.num_output_tokens for record in good)
    num_kept = None if slo is None else sum(keeps(record, slo) for record in good)
    return PointReport(
        load=load,
        num_requests=len(records),
        num_failed=len(records) - len(good),
        errors=dict(Counter(record.error for record in records if record.error is not None)),
        duration_s=duration_s,
        num_prompt_tokens=num_prompt_tokens,
        num_cached_tokens=sum(record.num_cached_tokens for record in good),
        num_output_tokens=num_output_tokens,
        requests_per_s=_per(len(good), duration_s),
        output_tokens_per_s=_per(num_output_tokens, duration_s),
        total_tokens_per_s=_per(num_prompt_tokens + num_output_tokens, duration_s),
        ttft_s=distribution(record.ttft_s for record in good),
        tpot_s=distribution(r.tpot_s for r in good if r.tpot_s is not None),
        itl_s=distribution(gap_s for record in good for gap_s in record.itl_s),
        e2e_s=distribution(record.e2e_s for record in good),
        goodput_rps=None if num_kept is None else _per(num_kept, duration_s),
        slo_attainment=None if num_kept is None else _per(num_kept, len(records)),
    )


def keeps(record: RequestRecord, slo: Slo) -> bool:
    """Whether a request that succeeded kept every limit."""
    return slo.holds(ttft_s=record.ttft_s, tpot_s=record.tpot_s, e2e_s=record.e2e_s)


def write_json(path: Path, report: object) -> None:
    """Writes any report of this package; `read_json` with its type gives it back."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(TypeAdapter(type(report)).dump_json(report, indent=2) + b"\n")


def read_json(path: Path, kind: type[T]) -> T:
    """Reads and validates a report written by `write_json`."""
    return TypeAdapter(kind).validate_json(path.read_bytes())


def _duration_s(records: Sequence[RequestRecord]) -> float:
    if not records:
        return 0.0
    return max(r.finished_s for r in records) - min(r.started_s for r in records)


def _per(count: float, amount: float) -> float:
    return count / amount if amount else 0.0
