"""The meter of a worker's steps, where its peaks are known."""

from __future__ import annotations

from core.clock import Clock
from core.config import Config
from engine.builder import Engine
from engine.step_meter import StepMeter, worker_peaks
from text.step_costs import product_kind, step_costs, step_weight_bytes


def make_meter(config: Config, engine: Engine, num_ranks: int, clock: Clock) -> StepMeter | None:
    """None where no peak is set and none is to be measured, which takes a second or two."""
    asked = config.observability
    if not (asked.peak_tflops or asked.peak_gbytes_per_s or asked.measure_peaks):
        return None
    served = (engine.card, config.model, engine.runner.dtype)
    kind = product_kind(*served)
    peaks = worker_peaks(asked, engine.device, kind, num_ranks, clock)
    costs = step_costs(engine.card, engine.spec, weight_bytes=step_weight_bytes(*served))
    return StepMeter(costs, peaks, clock)
