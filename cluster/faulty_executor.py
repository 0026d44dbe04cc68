"""Steps that are late or fail on purpose: `core.faults` at step, around any executor."""

from __future__ import annotations

from core.errors import WorkerLostError
from core.faults import FaultPoint, Faults
from engine.batch import StepInput
from engine.sample_row import SampleRow
from engine.sampler import Sampled
from engine.step_loop import Executor


class FaultyExecutor:
    """A delay holds up the step loop, as a stuck kernel would; a failure ends it."""

    def __init__(self, inner: Executor, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    def execute(self, step: StepInput, rows: list[SampleRow]) -> list[Sampled]:
        fault = self._faults.take(FaultPoint.STEP)
        if fault is not None:
            self._faults.wait(fault.delay_s)
            if fault.action is not None:
                raise WorkerLostError("a fault at step")
        return self._inner.execute(step, rows)
