"""How much of what the machine could do steps use: MFU and MBU, estimated from what a step must
compute and read, and how long it took.

Model FLOPs utilisation as in Chowdhery et al., "PaLM" (2022), appendix B. Both are shares while
steps run: a worker without work is not a slow one. What a step costs follows from its shape alone;
on GPUs a step that samples nothing is timed with the next one.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass

import torch

from core.clock import Clock
from core.config import ObservabilityConfig
from core.load import StepTotals
from core.roofline import Roofline
from engine.batch import StepInput
from engine.peaks import Peaks
from engine.sample_row import SampleRow
from engine.sampler import Sampled
from engine.step_loop import Executor
from text.step_costs import StepCosts

WINDOW_S = 10.0
"""Shares are of the steps that ended in the last so many seconds."""
_SLICE_S = 1.0


@dataclass(slots=True)
class _Slice:
    """Sums over the steps of about a second."""

    began: float
    step_s: float = 0.0
    operations: float = 0.0
    read_bytes: float = 0.0


class StepMeter:
    """Adds steps up. `note` belongs to the step loop; `totals` may come from any thread."""

    def __init__(self, costs: StepCosts, peaks: Roofline, clock: Clock) -> None:
        """A peak of 0 is not known."""
        self._costs = costs
        self._peaks = peaks
        self._clock = clock
        self._lock = threading.Lock()
        self._all = _Slice(0.0)
        self._recent: deque[_Slice] = deque()

    def note(self, step: StepInput, step_s: float) -> None:
        """A step was computed in so many seconds."""
        starts = step.query_starts.tolist()
        queries = [end - start for start, end in zip(starts, starts[1:], strict=False)]
        contexts = step.context_lens.tolist()
        operations = self._costs.operations(queries, contexts, len(step.logits_rows))
        read_bytes = self._costs.read_bytes(queries, contexts)
        now = self._clock.now()
        with self._lock:
            if not self._recent or now - self._recent[-1].began >= _SLICE_S:
                self._recent.append(_Slice(now))
                self._forget(now)
            for sums in (self._all, self._recent[-1]):
                sums.step_s += step_s
                sums.operations += operations
                sums.read_bytes += read_bytes

    def totals(self) -> StepTotals:
        """Since the start, and the shares of late."""
        with self._lock:
            self._forget(self._clock.now())
            step_s = sum(each.step_s for each in self._recent)
            operations = sum(each.operations for each in self._recent)
            read_bytes = sum(each.read_bytes for each in self._recent)
            return StepTotals(
                step_s=self._all.step_s,
                operations=self._all.operations,
                read_bytes=self._all.read_bytes,
                peak_operations_per_s=self._peaks.matmul_ops_per_s,
                peak_read_bytes_per_s=self._peaks.read_bytes_per_s,
                mfu=_share(operations, step_s, self._peaks.matmul_ops_per_s),
                mbu=_share(read_bytes, step_s, self._peaks.read_bytes_per_s),
            )

    def _forget(self, now: float) -> None:
        while self._recent and now - self._recent[0].began > WINDOW_S:
            self._recent.popleft()


class MeteredExecutor:
    """An `Executor` whose steps are noted."""

    def __init__(self, executor: Executor, meter: StepMeter, clock: Clock) -> None:
        self._executor = executor
        self._meter = meter
        self._clock = clock

    def execute(self, step: StepInput, rows: list[SampleRow]) -> list[Sampled]:
        began = self._clock.now()
        sampled = self._executor.execute(step, rows)
        self._meter.note(step, self._clock.now() - began)
        return sampled


def worker_peaks(
    settings: ObservabilityConfig, device: torch.device, kind: str, num_ranks: int, clock: Clock
) -> Roofline:
    """What all ranks of a worker do at best: as set, else as measured if that is asked for, else 0.
    `kind` is what linear layers multiply."""
    operations = (settings.peak_tflops or 0.0) * 1e12
    read_bytes = (settings.peak_gbytes_per_s or 0.0) * 1e9
    if settings.measure_peaks and not (operations and read_bytes):
        measured = Peaks(device, kind, clock).measure()
        operations = operations or measured.matmul_ops_per_s
        read_bytes = read_bytes or measured.read_bytes_per_s
    return Roofline(read_bytes * num_ranks, operations * num_ranks, kind)


def _share(amount: float, step_s: float, peak_per_s: float) -> float:
    return amount / step_s / peak_per_s if step_s and peak_per_s else 0.0
