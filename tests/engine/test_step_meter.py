"""What steps are said to cost, and the share of a machine that this is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from core.config import ObservabilityConfig
from core.kv_spec import KVGroup, KVSpec
from core.roofline import Roofline
from engine.batch import StepInput
from engine.sample_row import SampleRow
from engine.sampler import Sampled
from engine.step_meter import WINDOW_S, MeteredExecutor, StepMeter, worker_peaks
from text.step_costs import StepCosts

SPEC = KVSpec((KVGroup(2, 1, 8), KVGroup(1, 1, 8, window=4)), 4, "bfloat16")
PER_LAYER = 2 * 8 * 2
COSTS = StepCosts(
    weight_bytes=1000,
    token_operations=100.0,
    row_operations=10.0,
    pair_operations=1.0,
    spec=SPEC,
)
PEAKS = Roofline(read_bytes_per_s=10_000.0, matmul_ops_per_s=1_000.0, matmul_type="float32")


@dataclass
class Clock:
    time: float = 0.0

    def now(self) -> float:
        return self.time


def step(queries: list[int], contexts: list[int], num_rows: int) -> StepInput:
    num_tokens, none = sum(queries), np.zeros(0, dtype=np.int64)
    return StepInput(
        token_ids=np.zeros(num_tokens, dtype=np.int64),
        positions=np.zeros(num_tokens, dtype=np.int64),
        query_starts=np.cumsum([0, *queries], dtype=np.int32),
        context_lens=np.array(contexts, dtype=np.int32),
        block_tables=np.zeros((len(queries), 1), dtype=np.int32),
        slot_mapping=none,
        logits_rows=np.zeros(num_rows, dtype=np.int64),
        num_decode=0,
    )


def pairs(queries: int, context: int, window: int | None) -> int:
    """Counted one by one."""
    positions = range(context - queries, context)
    return sum(min(p + 1, window or p + 1) for p in positions)


@pytest.mark.parametrize(
    ("queries", "context"), [(1, 1), (1, 9), (3, 3), (4, 4), (5, 5), (3, 9), (6, 7), (9, 9)]
)
def test_attention_costs_the_pairs_that_are_not_masked(queries: int, context: int) -> None:
    counted = 2 * pairs(queries, context, None) + pairs(queries, context, 4)
    assert COSTS.operations([queries], [context], 1) == 100 * queries + 10 + counted


def test_a_step_reads_the_weights_once_and_each_sequence_s_kv() -> None:
    seen = 2 * (7 + 2) + (4 + 2)  # two full layers, one that sees four tokens back
    assert COSTS.read_bytes([1, 1], [7, 2]) == 1000 + PER_LAYER * seen
    assert COSTS.read_bytes([3], [9]) == 1000 + PER_LAYER * (2 * 9 + 6)


def test_shares_are_of_the_time_that_steps_took() -> None:
    clock = Clock()
    meter = StepMeter(COSTS, PEAKS, clock)
    for _ in range(3):
        clock.time += 2.0  # of which the step is a part
        meter.note(step([1, 1], [7, 2], 2), 0.5)
    totals = meter.totals()
    operations, read_bytes = COSTS.operations([1, 1], [7, 2], 2), COSTS.read_bytes([1, 1], [7, 2])
    assert totals.step_s == 1.5 and totals.operations == 3 * operations
    assert totals.read_bytes == 3 * read_bytes
    assert totals.mfu == pytest.approx(operations / 0.5 / 1_000)
    assert totals.mbu == pytest.approx(read_bytes / 0.5 / 10_000)


def test_shares_are_forgotten_and_totals_are_not() -> None:
    clock = Clock()
    meter = StepMeter(COSTS, PEAKS, clock)
    meter.note(step([1], [1], 1), 0.5)
    clock.time += WINDOW_S + 1
    totals = meter.totals()
    assert totals.mfu == totals.mbu == 0.0 and totals.step_s == 0.5


def test_without_a_peak_there_is_no_share_of_it() -> None:
    meter = StepMeter(COSTS, Roofline(0.0, 1_000.0, "float32"), Clock())
    meter.note(step([1], [1], 1), 0.5)
    assert meter.totals().mbu == 0.0 and meter.totals().mfu > 0.0


def test_an_executor_s_steps_are_noted_and_its_tokens_are_its_own() -> None:
    clock = Clock()

    class Executor:
        def execute(self, step: StepInput, rows: list[SampleRow]) -> list[Sampled]:
            clock.time += 0.25
            return [Sampled(7)]

    meter = StepMeter(COSTS, PEAKS, clock)
    assert MeteredExecutor(Executor(), meter, clock).execute(step([1], [1], 1), []) == [Sampled(7)]
    assert meter.totals().step_s == 0.25


def test_peaks_that_are_set_are_those_of_every_rank() -> None:
    settings = ObservabilityConfig(peak_tflops=2.0, peak_gbytes_per_s=50.0, measure_peaks=True)
    peaks = worker_peaks(settings, torch.device("cpu"), "bfloat16", 2, Clock())
    assert peaks == Roofline(100e9, 4e12, "bfloat16")
