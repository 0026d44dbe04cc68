"""What pulls of KV between two workers reach, of what gloo alone does between the same processes.

    raw     gloo sends and receives of the same bytes, in messages of the same size and as many of
            them under way: nothing is announced, acknowledged, packed or unpacked
    parts   the same in the pieces that a pull's messages travel in, as many bytes under way
    pull    from D's asking for blocks that P has computed, until all of them are in D's pool; over
            each kind of data link: TCP, as between machines, gloo, and shared memory, as within one

Run by run side by side; medians are reported, and a ratio's median is of pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from bench.report import SCHEMA_VERSION, MachineReport
from bench.stats import median

LinkKind = Literal["tcp", "gloo", "shm"]
LINK_KINDS: tuple[LinkKind, ...] = get_args(LinkKind)


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
    pulls_s: Mapping[LinkKind, float]


@dataclass(frozen=True, slots=True)
class PullFigures:
    """Pulls of one size over one kind of data link."""

    bytes_per_s: float
    ratio: float
    """Of the pull to the raw loop: 1 is as fast."""
    ratio_of_best: float
    """Each one's fastest run: what is left of it on a machine that others use too."""


@dataclass(frozen=True, slots=True)
class TransferPoint:
    """Transfers of one size."""

    size_bytes: int
    samples: tuple[TransferSample, ...]
    raw_bytes_per_s: float
    parts_bytes_per_s: float
    pulls: Mapping[LinkKind, PullFigures]


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
    setup: Mapping[LinkKind, SetupReport]
    wire: WireReport
    machine: MachineReport = field(default_factory=MachineReport)
    schema_version: int = SCHEMA_VERSION


def transfer_point(size_bytes: int, samples: Sequence[TransferSample]) -> TransferPoint:
    """Sums up the runs of one size."""
    fastest_raw = min(s.raw_s for s in samples)

    def pulls(kind: LinkKind) -> PullFigures:
        return PullFigures(
            bytes_per_s=size_bytes / median(s.pulls_s[kind] for s in samples),
            ratio=median(s.raw_s / s.pulls_s[kind] for s in samples),
            ratio_of_best=fastest_raw / min(s.pulls_s[kind] for s in samples),
        )

    return TransferPoint(
        size_bytes,
        tuple(samples),
        raw_bytes_per_s=size_bytes / median(s.raw_s for s in samples),
        parts_bytes_per_s=size_bytes / median(s.parts_s for s in samples),
        pulls={kind: pulls(kind) for kind in samples[0].pulls_s},
    )
