"""Percentiles, limits and the times derived from a record."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.record import RequestRecord
from bench.stats import Slo, distribution, median, parse_duration_s, parse_slo, percentile
from core.errors import ConfigError

SAMPLES = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200)


@given(SAMPLES, st.floats(0, 100))
def test_percentiles_are_numpys(samples: list[float], percent: float) -> None:
    expected = float(np.percentile(samples, percent))
    assert percentile(sorted(samples), percent) == pytest.approx(expected, rel=1e-9, abs=1e-6)


@given(SAMPLES)
def test_a_distribution_is_ordered_and_lies_within_its_samples(samples: list[float]) -> None:
    seen = distribution(samples)
    assert seen is not None
    assert min(samples) <= seen.p50 <= seen.p95 <= seen.p99 <= seen.max == max(samples)
    assert seen.count == len(samples)


def test_nothing_has_no_distribution() -> None:
    assert distribution([]) is None


def test_a_constant_sample_has_exactly_itself_as_every_percentile() -> None:
    seen = distribution([0.1] * 7)
    assert seen is not None
    assert (seen.p50, seen.p95, seen.p99, seen.max) == (0.1, 0.1, 0.1, 0.1)


def test_the_median_of_an_even_number_is_the_mean_of_the_middle_two() -> None:
    assert median([4.0, 1.0, 3.0, 2.0]) == 2.5


def test_a_record_derives_its_times_from_the_moments_it_saw() -> None:
    record = RequestRecord(
        index=0,
        started_s=10.0,
        finished_s=12.5,
        chunk_times_s=(10.5, 11.0, 12.0),
        last_token_s=12.3,
        num_output_tokens=7,
    )
    assert record.ttft_s == 0.5
    assert record.itl_s == (0.5, 1.0)
    # Six tokens follow the first, in three chunks altogether: tokens count, not chunks.
    assert record.tpot_s == (12.3 - 10.5) / 6
    assert record.e2e_s == 2.5


def test_a_single_token_has_no_time_per_token() -> None:
    record = RequestRecord(0, 0.0, 1.0, chunk_times_s=(1.0,), last_token_s=1.0, num_output_tokens=1)
    assert record.tpot_s is None
    assert record.itl_s == ()


def test_an_slo_is_read_with_its_units() -> None:
    assert parse_slo("ttft=500ms, tpot=50ms,e2e=5s") == Slo(ttft_s=0.5, tpot_s=0.05, e2e_s=5.0)
    assert parse_duration_s("80us") == pytest.approx(80e-6)


@pytest.mark.parametrize("text", ["", "ttft", "ttft=5", "itl=5ms", "ttft=1s,ttft=2s", "tpot=fast"])
def test_a_malformed_slo_is_refused_with_the_offending_part(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_slo(text)


def test_an_slo_holds_up_to_its_limits_and_not_beyond() -> None:
    slo = Slo(ttft_s=0.5, tpot_s=0.05)
    assert slo.holds(ttft_s=0.5, tpot_s=0.05, e2e_s=100.0)
    assert not slo.holds(ttft_s=0.51, tpot_s=0.01, e2e_s=1.0)
    assert not slo.holds(ttft_s=0.1, tpot_s=0.06, e2e_s=1.0)
    assert slo.holds(ttft_s=0.1, tpot_s=None, e2e_s=1.0)
