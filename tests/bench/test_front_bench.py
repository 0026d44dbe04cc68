"""`tandem bench router`, small: a real router and the synthetic worker, a process each."""

from __future__ import annotations

import asyncio

from bench.front.command import front_table
from bench.front.decisions import decision_s
from bench.front.run import FrontPlan, measure_front
from core.clock import MonotonicClock

PLAN = FrontPlan(
    num_requests=5, num_streams=3, stream_len=12, input_len=20, repeats=2, num_workers=2
)


def test_every_token_of_every_stream_is_counted() -> None:
    report = asyncio.run(measure_front(PLAN, [], lambda _: None))
    assert len(report.repeats) == 2
    for repeat in report.repeats:
        assert 0 < repeat.first_token_p50_s <= repeat.first_token_p99_s
        assert repeat.tokens_per_cpu_s > 0
        assert repeat.tokens_per_s > 0
    assert front_table(report).row_count == 6


def test_decisions_are_timed() -> None:
    assert decision_s(2, 64, MonotonicClock(), rounds=3) > 0
