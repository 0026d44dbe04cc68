"""Online requests with and without a batch beside them, as values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.beside.lines import LineCounts, LineShape
from bench.lengths import LengthRange
from bench.record import RequestRecord
from bench.report import SCHEMA_VERSION, MachineReport
from bench.stats import Distribution, distribution


@dataclass(frozen=True, slots=True)
class BesidePlan:
    """What is sent, and for how long."""

    lines: LineShape = LineShape()
    inputs: LengthRange = LengthRange(128, 1024)
    outputs: LengthRange = LengthRange(32, 32)
    load: float = 0.4
    """Share of one prefill worker's time that online prompts take."""
    rate_rps: float | None = None
    """Online requests per second, whatever share of a worker that is."""
    slice_s: float = 30.0
    num_pairs: int = 6
    """Slices with a batch, and as many without."""
    chunk_tokens: int = 512
    num_probes: int = 3
    """Prompts of one chunk that are timed before each slice, with nothing beside them."""
    batch_timeout_s: float = 900.0
    seed: str = "0"


@dataclass(frozen=True, slots=True)
class OnlineReport:
    """What clients saw in all slices of one kind. Seconds, of the requests that succeeded."""

    num_requests: int
    errors: dict[str, int]
    ttft_s: Distribution | None
    waiting_s: Distribution | None
    """Of TTFT, as the server tells it: until the first chunk is planned."""
    computing_s: Distribution | None
    """From there to the first token; longer too if others take cores from the prefill worker."""
    tpot_s: Distribution | None

    @property
    def num_failed(self) -> int:
        return sum(self.errors.values())


@dataclass(frozen=True, slots=True)
class BesideReport:
    """Everything that was found."""

    plan: BesidePlan
    model: str
    settings: Mapping[str, str]
    rate_rps: float
    """Online requests per second."""
    chunk_s: Distribution
    """One chunk of the prefill worker, alone; its median is what TTFT may grow by."""
    without: OnlineReport
    beside: OnlineReport
    to_the_end: OnlineReport
    """Beside the batch that was left to end."""
    difference_s: Distribution | None
    """TTFT of one request beside a batch less that of its twin without one."""
    num_lines_in_slices: int
    """Lines answered in slices, after which their batches were cancelled."""
    status: str
    """Of the batch that was left to end."""
    batch_s: float
    """From its beginning to its end."""
    counts: LineCounts
    machine: MachineReport = field(default_factory=MachineReport)
    schema_version: int = SCHEMA_VERSION

    def growth_s(self, percent: int) -> float | None:
        """How much longer that percentile of TTFT is beside a batch: of 50, 95 or 99."""
        before, after = self.without.ttft_s, self.beside.ttft_s
        if before is None or after is None:
            return None
        name = f"p{percent}"
        return float(getattr(after, name) - getattr(before, name))

    @property
    def is_within_a_chunk(self) -> bool:
        growth_s = self.growth_s(95)
        return growth_s is not None and growth_s <= self.chunk_s.p50

    @property
    def is_whole(self) -> bool:
        """The batch has ended with an answer to every line, and no online request has failed."""
        online = (self.without, self.beside, self.to_the_end)
        failed = sum(each.num_failed for each in online)
        return self.status == "completed" and self.counts.is_complete and not failed


def online_report(records: Sequence[RequestRecord]) -> OnlineReport:
    good = [record for record in records if record.ok]
    return OnlineReport(
        num_requests=len(records),
        errors=dict(Counter(record.error for record in records if record.error is not None)),
        ttft_s=distribution(record.ttft_s for record in good),
        waiting_s=_told(good, "queue_s"),
        computing_s=_told(good, "prefill_s"),
        tpot_s=distribution(r.tpot_s for r in good if r.tpot_s is not None),
    )


def _told(records: Sequence[RequestRecord], name: str) -> Distribution | None:
    return distribution(r.timings[name] for r in records if name in r.timings)


def differences_s(
    without: Sequence[RequestRecord], beside: Sequence[RequestRecord]
) -> Distribution | None:
    """Of twins: requests of one place in both rows."""
    pairs = zip(without, beside, strict=True)
    return distribution(b.ttft_s - a.ttft_s for a, b in pairs if a.ok and b.ok)
