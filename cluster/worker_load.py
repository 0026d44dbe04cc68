"""What a worker reports of itself: the step loop's load, and what only the shell knows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cluster.worker_cancels import CancelWatch
from cluster.worker_drain import DrainGate
from core.load import LoadReport
from engine.step_loop import StepLoop
from engine.step_meter import StepMeter
from kv_transfer.stats import TransferStats


@dataclass(frozen=True, slots=True)
class LoadReporter:
    """Makes load reports, for as long as anybody asks: also while the worker stops."""

    step_loop: StepLoop
    gate: DrainGate
    transfers: TransferStats
    cancels: CancelWatch
    stuck_after_s: float
    meter: StepMeter | None = None

    def load(self) -> LoadReport:
        """The load now; `ready` is progress: no work has waited too long for its next step."""
        report, transfers = self.step_loop.load(), self.transfers.totals()
        return replace(
            report,
            ready=report.last_step_age_s < self.stuck_after_s,
            draining=self.gate.draining,
            kv_transfer_bytes=transfers.num_bytes,
            kv_transfer_s=transfers.transfer_s,
            kv_transfer_failures=dict(transfers.failures),
            cancel_to_free_s=self.cancels.histogram(),
            steps=None if self.meter is None else self.meter.totals(),
        )
