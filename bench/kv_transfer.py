"""What pulls of KV between two workers reach, of what gloo alone does between the same processes.

    raw     gloo sends and receives of the same bytes, in messages of the same size and as many of
            them under way: nothing is announced, acknowledged, packed or unpacked
    parts   the same in the pieces that a pull's messages travel in, as many bytes under way
    pull    from D's asking for blocks that P has computed, until all of them are in D's pool

Run by run side by side; medians are reported, and the ratio's median is of pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bench.report import SCHEMA_VERSION, MachineReport
from bench.stats import median


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """What is measured."""

    sizes_bytes: tuple[int, ...]
    max_message_bytes: int
    max_inflight_messages: int
    num_threads: int
    repeats: int


@dataclass(frozen=True, slots=True)
class TransferSample:
    """One run of each, one after the other, in seconds."""

    raw_s: float
    parts_s: float
    pull_s: float


@dataclass(frozen=True, slots=True)
class TransferPoint:
    """Transfers of one size."""

    size_bytes: int
    samples: tuple[TransferSample, ...]
    raw_bytes_per_s: float
    parts_bytes_per_s: float
    pull_bytes_per_s: float
    ratio: float
    """Of the pull to the raw loop: 1 is as fast."""
    ratio_of_best: float
    """Each one's fastest run: what is left of it on a machine that others use too."""


@dataclass(frozen=True, slots=True)
class SetupReport:
    """A first pull of one block, link and all; and a later one on the same link."""

    first_pull_s: float
    later_pull_s: float
    repeats: int

    @property
    def link_s(self) -> float:
        """What the link costs: control stream, rendezvous, data link and staging."""
        return self.first_pull_s - self.later_pull_s


@dataclass(frozen=True, slots=True)
class WireReport:
    """Bytes that D received for one prompt, by the type that KV is stored in."""

    num_tokens: int
    bytes_by_dtype: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class KvTransferReport:
    """Everything that `tandem bench kv-transfer` measures."""

    plan: TransferPlan
    points: tuple[TransferPoint, ...]
    setup: SetupReport
    wire: WireReport
    machine: MachineReport = field(default_factory=MachineReport)
    schema_version: int = SCHEMA_VERSION


def transfer_point(size_bytes: int, samples: Sequence[TransferSample]) -> TransferPoint:
    """Sums up the runs of one size."""
    fastest_raw, fastest_pull = min(s.raw_s for s in samples), min(s.pull_s for s in samples)
    return TransferPoint(
        size_bytes,
        tuple(samples),
        raw_bytes_per_s=size_bytes / median(s.raw_s for s in samples),
        parts_bytes_per_s=size_bytes / median(s.parts_s for s in samples),
        pull_bytes_per_s=size_bytes / median(s.pull_s for s in samples),
        ratio=median(s.raw_s / s.pull_s for s in samples),
        ratio_of_best=fastest_raw / fastest_pull,
    )
