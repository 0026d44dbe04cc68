"""How soon a pull under way fails once its P was killed, or stopped."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from bench.kv_transfer import LINK_KINDS
from bench.kv_transfer_peers import DecodeSide, PeerSettings, PrefillProcess
from bench.kv_transfer_run import SPEC
from bench.progress import Progress
from bench.report import SCHEMA_VERSION, MachineReport
from bench.stats import Distribution, distribution
from core.clock import Clock
from core.config import TransferConfig

_NUM_BLOCKS = 64
_SIGNALS = {"killed": signal.SIGKILL, "stopped": signal.SIGSTOP}


@dataclass(frozen=True, slots=True)
class DeadPeersReport:
    """Seconds from the signal to the failure of the pull."""

    timeout_s: float
    repeats: int
    seconds: dict[str, Distribution]
    machine: MachineReport = field(default_factory=MachineReport)
    schema_version: int = SCHEMA_VERSION


def measure_dead_peers(clock: Clock, progress: Progress, *, repeats: int) -> DeadPeersReport:
    """Kills and stops a P in the middle of a pull, again and again."""
    transfer = TransferConfig()
    settings = PeerSettings(SPEC, _NUM_BLOCKS, transfer, 1)
    seconds: dict[str, Distribution] = {}
    for kind in LINK_KINDS:
        with DecodeSide(settings, kind) as d:
            for how, number in _SIGNALS.items():
                what = f"P is {how}, over {kind}"
                taken = []
                for run in range(repeats):
                    progress(f"{what}, run {run + 1} of {repeats}")
                    taken.append(_until_failed_s(settings, d, number, clock))
                spread = distribution(taken)
                assert spread is not None, "at least one run"
                seconds[what] = spread
    return DeadPeersReport(transfer.timeout_s, repeats, seconds)


def _until_failed_s(
    settings: PeerSettings, d: DecodeSide, number: signal.Signals, clock: Clock
) -> float:
    with PrefillProcess(settings) as p:
        begin_pull(p, d)
        started = clock.now()
        p.signal(number)
        d.end()
        return clock.now() - started


def begin_pull(p: PrefillProcess, d: DecodeSide) -> None:
    """Leaves a pull open, of blocks that P has yet to compute, on a link that has carried some."""
    d.pull(p.offer(d.kind, 1))
    d.begin(p.offer(d.kind, _NUM_BLOCKS, computed=False))
    d.pull(p.offer(d.kind, 1))  # asked for later, so the other one is open
