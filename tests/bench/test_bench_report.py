"""Reports from synthetic timelines, with figures worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.batching import BatchingReport, BatchingRun, batching_report, padded_to_longest
from bench.client import Target
from bench.comparison import comparison_report, median_run
from bench.load_plan import Load, LoadPlan
from bench.plot import plot_load
from bench.record import RequestRecord
from bench.report import PointReport, ServeReport, point_report, read_json, write_json
from bench.stats import Slo
from bench.workload import Segment, WorkItem

LOAD = Load("concurrency", 2)


def timeline(index: int, start_s: float, ttft_s: float, gaps_s: list[float]) -> RequestRecord:
    """A record with one token per chunk."""
    times_s = [start_s + ttft_s]
    for gap_s in gaps_s:
        times_s.append(times_s[-1] + gap_s)
    return RequestRecord(
        index=index,
        started_s=start_s,
        finished_s=times_s[-1],
        chunk_times_s=tuple(times_s),
        last_token_s=times_s[-1],
        num_prompt_tokens=10,
        num_output_tokens=len(times_s),
    )


RECORDS = [
    timeline(0, start_s=0.0, ttft_s=1.0, gaps_s=[0.25, 0.25]),
    timeline(1, start_s=0.0, ttft_s=3.0, gaps_s=[0.5]),
    RequestRecord(2, started_s=0.5, finished_s=4.0, error="HTTP 429"),
]


def test_a_point_sums_up_what_succeeded_and_counts_what_failed() -> None:
    point = point_report(LOAD, RECORDS, slo=None)
    assert (point.num_requests, point.num_failed, point.errors) == (3, 1, {"HTTP 429": 1})
    assert point.duration_s == 4.0
    assert (point.num_prompt_tokens, point.num_output_tokens) == (20, 5)
    assert point.output_tokens_per_s == 5 / 4
    assert point.total_tokens_per_s == 25 / 4
    assert point.requests_per_s == 2 / 4
    assert point.ttft_s is not None and point.ttft_s.p50 == 2.0
    assert point.tpot_s is not None and point.tpot_s.p50 == (0.25 + 0.5) / 2
    assert point.itl_s is not None and (point.itl_s.count, point.itl_s.p50) == (3, 0.25)
    assert point.e2e_s is not None and point.e2e_s.max == 3.5


def test_goodput_counts_only_requests_that_kept_every_limit() -> None:
    point = point_report(LOAD, RECORDS, Slo(ttft_s=2.0, tpot_s=0.3))
    assert point.goodput_rps == 1 / 4
    assert point.slo_attainment == 1 / 3


def test_a_run_without_success_has_no_latencies_and_no_goodput() -> None:
    point = point_report(LOAD, RECORDS[2:], Slo(ttft_s=2.0))
    assert (point.ttft_s, point.tpot_s, point.itl_s, point.e2e_s) == (None, None, None, None)
    assert (point.output_tokens_per_s, point.goodput_rps) == (0.0, 0.0)


def serve_report(name: str) -> ServeReport:
    points = (point_report(LOAD, RECORDS, Slo(ttft_s=2.0)), point_report(LOAD, RECORDS[2:], None))
    return ServeReport(name, "http://host", "model", "completions", {"seed": "0"}, points)


def test_a_report_survives_its_json_file(tmp_path: Path) -> None:
    report = serve_report("a")
    write_json(tmp_path / "deep" / "report.json", report)
    assert read_json(tmp_path / "deep" / "report.json", ServeReport) == report


def test_a_plot_is_drawn_even_where_a_load_has_no_latencies(tmp_path: Path) -> None:
    plot_load([serve_report("a"), serve_report("b")], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def item(index: int, output_len: int) -> WorkItem:
    return WorkItem(index, (Segment(f"request/{index}", 16),), output_len)


def test_static_batching_asks_every_row_for_its_groups_longest_output() -> None:
    padded = padded_to_longest([item(i, n) for i, n in enumerate([3, 9, 1, 2, 5])], 2)
    assert [p.output_len for p in padded] == [9, 9, 2, 2, 5]
    assert [p.index for p in padded] == [0, 1, 2, 3, 4]


def batching_run(tokens_per_s: float) -> BatchingRun:
    return BatchingRun("static", 100, 100, 100 / tokens_per_s, tokens_per_s)


def test_the_batching_ratio_is_the_median_of_pairs(tmp_path: Path) -> None:
    speeds = [10.0, 20.0, 10.0, 30.0, 100.0, 400.0]  # static, continuous, static, ...
    report = batching_report(
        [batching_run(speed) for speed in speeds], concurrency=32, num_requests=64, name="x"
    )
    assert report.ratio == 3.0
    assert (report.static_tokens_per_s, report.continuous_tokens_per_s) == (10.0, 30.0)
    write_json(tmp_path / "batching.json", report)
    assert read_json(tmp_path / "batching.json", BatchingReport) == report


def point_at(load: Load, speed: float) -> PointReport:
    """A point at which each request's only chunk gap is `1 / speed`."""
    records = [timeline(0, start_s=0.0, ttft_s=1 / speed, gaps_s=[1 / speed])]
    return point_report(load, records, slo=None)


def test_servers_are_compared_run_by_run_at_each_load() -> None:
    one, eight = Load("concurrency", 1), Load("concurrency", 8)
    runs = {
        "base": [point_at(load, speed) for speed in (1, 2, 4) for load in (one, eight)],
        "other": [point_at(load, speed) for speed in (2, 6, 16) for load in (one, eight)],
    }
    targets = {name: Target("http://host", "model") for name in runs}
    report = comparison_report(targets, LoadPlan(), [one, eight], runs)
    assert [(r.name, r.load) for r in report.ratios] == [("other", one), ("other", eight)]
    for ratio in report.ratios:
        assert ratio.output_tokens_per_s == pytest.approx(3.0)  # of 2, 3 and 4
        assert ratio.ttft_p50 == pytest.approx(1 / 3)
        assert ratio.tpot_p50 == pytest.approx(1 / 3)
    assert report.servers[1].points[0] == runs["other"][2]


def test_the_median_run_is_a_run_that_happened() -> None:
    runs = [point_at(LOAD, speed) for speed in (5.0, 1.0, 3.0, 2.0)]
    assert median_run(runs) is runs[3]
