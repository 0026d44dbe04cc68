"""`tandem bench kv-transfer`: what it counts, and the promised deadlines that it measures.

A deadline is tested as one: the failure comes within it, and some allowance for a busy machine. The
figures themselves are the bench's: `tandem bench kv-transfer --dead-peers`.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from bench.kv_transfer import (
    LINK_KINDS,
    KvTransferReport,
    LinkKind,
    TransferSample,
    transfer_point,
)
from bench.kv_transfer_command import kv_transfer
from bench.kv_transfer_deaths import begin_pull
from bench.kv_transfer_peers import DecodeSide, PeerSettings, PrefillProcess
from bench.kv_transfer_raw import Messages
from bench.kv_transfer_run import SPEC
from bench.report import read_json
from core.config import TransferConfig
from core.errors import ConfigError
from kv_transfer.events import PullFailed

ALLOWANCE = 5
KILLED_S = 1.0
"""Promised: how long after a peer's death its transfers may take to fail."""


@pytest.mark.parametrize("kind", LINK_KINDS)
@pytest.mark.parametrize(
    ("number", "within_s", "reason"),
    [
        (signal.SIGKILL, KILLED_S, "peer_lost"),
        (signal.SIGSTOP, TransferConfig().timeout_s, "timeout"),
    ],
    ids=["killed", "stopped"],
)
def test_a_pull_from_a_peer_that_is_gone_fails_by_its_deadline(
    number: signal.Signals, within_s: float, reason: str, kind: LinkKind
) -> None:
    settings = PeerSettings(SPEC, 64, TransferConfig(), 1)
    with DecodeSide(settings, kind) as d, PrefillProcess(settings) as p:
        begin_pull(p, d)
        p.signal(number)
        failed = d.end(ALLOWANCE * within_s)
        assert isinstance(failed, PullFailed) and failed.reason == reason


def test_pulls_are_held_against_the_same_bytes_over_gloo(tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    kv_transfer("64,1984", 1024, 2, 1, 100, 2, False, file)
    report = read_json(file, KvTransferReport)
    assert [point.size_bytes for point in report.points] == [64 * 1024, 1984 * 1024]
    for point in report.points:
        assert len(point.samples) == 2
        assert all(min(s.raw_s, s.parts_s, *s.pulls_s.values()) > 0 for s in point.samples)
        assert set(point.pulls) == set(LINK_KINDS)
    # 30 layers, 3 heads of 64; 7 blocks of 16 tokens; int8 has a scale of two bytes in each row
    rows = 7 * 16 * 2 * 30 * 3
    wire = report.wire.bytes_by_dtype
    assert wire == {"bfloat16": rows * 128, "int8": rows * 66, "fp8": rows * 66}


def test_the_raw_messages_are_all_the_bytes() -> None:
    assert Messages(10, 4, 2).sizes == [4, 4, 2]
    assert Messages(8, 4, 2).sizes == [4, 4]
    assert Messages(3, 4, 2).sizes == [3]


def test_the_ratio_is_the_median_of_pairs() -> None:
    times = [(1.0, 2.0, 1.0), (3.0, 4.0, 1.0), (9.0, 10.0, 3.0)]
    samples = [TransferSample(raw, 1.0, {"gloo": gloo, "shm": shm}) for raw, gloo, shm in times]
    point = transfer_point(100, samples)
    gloo, shm = point.pulls["gloo"], point.pulls["shm"]
    assert (gloo.ratio, shm.ratio) == (0.75, 3.0)
    assert (gloo.ratio_of_best, shm.ratio_of_best) == (0.5, 1.0)
    assert (gloo.bytes_per_s, shm.bytes_per_s) == (25.0, 100.0)
    assert point.raw_bytes_per_s == pytest.approx(100 / 3)


@pytest.mark.parametrize("sizes", ["0", "x", "65"])
def test_sizes_that_are_not_whole_blocks_are_refused(sizes: str) -> None:
    with pytest.raises(ConfigError):
        kv_transfer(sizes, 1024, 2, 1, 100, 1, False, None)
