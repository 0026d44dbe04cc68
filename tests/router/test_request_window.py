"""What is remembered of the last minutes: right, and as small at any load."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from router.observe.log_histogram import RATIO, LogHistogram, percentiles
from router.observe.request_window import (
    NUM_STEPS,
    SMOOTHED_STEPS,
    STEP_S,
    EndedRequest,
    RequestWindow,
    ServiceLevel,
)

LEVEL = ServiceLevel(ttft_s=1.0, tpot_s=0.1)


def ended(
    ttft_s: float | None = 0.5,
    tpot_s: float | None = 0.05,
    *,
    finished: bool = True,
    cancelled: bool = False,
) -> EndedRequest:
    return EndedRequest(ttft_s, tpot_s, finished, cancelled, num_output_tokens=10, num_retries=0)


@given(st.lists(st.floats(2e-5, 9e4), min_size=1), st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_a_percentile_is_close_to_a_value_of_its_rank(values: list[float], share: float) -> None:
    histogram = LogHistogram()
    for value in values:
        histogram.add(value)
    found = percentiles([histogram], (share,))
    rank = max(1, -int(-share * len(values) // 1))
    exact = sorted(values)[rank - 1]
    assert found is not None
    assert exact / RATIO <= found[0] <= exact * RATIO


def test_percentiles_of_several_histograms_are_those_of_all_values() -> None:
    one, other, both = LogHistogram(), LogHistogram(), LogHistogram()
    for value in (0.1, 0.2, 0.3):
        one.add(value)
        both.add(value)
    for value in (1.0, 2.0):
        other.add(value)
        both.add(value)
    assert percentiles([one, other], (0.5, 0.99)) == percentiles([both], (0.5, 0.99))
    assert percentiles([LogHistogram()], (0.5,)) is None


def test_times_beyond_all_measure_count_as_the_longest() -> None:
    histogram = LogHistogram()
    for value in (0.0, 1e-9, 1e9):
        histogram.add(value)
    assert len(histogram.counts) == 2


def test_goodput_keeps_both_limits() -> None:
    window = RequestWindow(LEVEL, began=1000.0)
    for request in (
        ended(),
        ended(tpot_s=None),
        ended(ttft_s=1.5),
        ended(tpot_s=0.2),
        ended(finished=False),
        ended(ttft_s=None, finished=False, cancelled=True),
    ):
        window.ended(request, 1001.0)
    window.refused(1001.0)
    summary = window.summary(1002.0)
    assert (summary.num_requests, summary.num_good) == (7, 2)
    assert (summary.num_failed, summary.num_cancelled) == (2, 1)
    assert summary.span_s == 2.0, "the house is two seconds old"


def test_a_point_is_of_its_step_and_never_changes_once_that_is_over() -> None:
    window = RequestWindow(LEVEL, began=0.0)
    window.ended(ended(ttft_s=0.1), 1000.0)
    window.ended(ended(ttft_s=0.2), 1000.0 + STEP_S)
    first = window.points(1000.0 + STEP_S)
    assert [point.num_requests for point in first[-3:]] == [0, 1, 1]
    window.ended(ended(ttft_s=9.0), 1000.0 + STEP_S)
    window.ended(ended(ttft_s=9.0), 1000.0 + 2 * STEP_S)
    later = window.points(1000.0 + 2 * STEP_S)
    assert later[-3] == first[-2]
    assert later[-2].num_requests == 2
    assert len(later) == NUM_STEPS


def test_what_is_old_is_forgotten() -> None:
    window = RequestWindow(LEVEL, began=0.0)
    window.ended(ended(), 1000.0)
    much_later = 1000.0 + (NUM_STEPS + SMOOTHED_STEPS) * STEP_S
    assert all(point.num_requests == 0 for point in window.points(much_later))
    assert window.summary(much_later).ttft_s is None


def test_its_size_does_not_depend_on_the_load() -> None:
    window, chance = RequestWindow(LEVEL, began=0.0), random.Random(1)
    now = 0.0
    for _ in range(20_000):
        now += chance.expovariate(20.0)
        window.ended(ended(chance.lognormvariate(-1, 2), chance.lognormvariate(-4, 2)), now)
    window.points(now)
    steps = window._steps.values()
    assert len(steps) <= NUM_STEPS + SMOOTHED_STEPS + 1
    assert all(len(s.ttft.counts) + len(s.tpot.counts) < 950 for s in steps)
    assert len(window._points) <= NUM_STEPS
