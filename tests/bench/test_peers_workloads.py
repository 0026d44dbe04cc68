"""The workloads beside other servers: what they ask for, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.peers.arrival import Window, arrival_figures, arrived_s
from bench.peers.closed_loop import UnfairError
from bench.peers.lengths_check import length_problem
from bench.peers.workloads import Arrival, ClosedLoop, Demand, all_workloads, chosen
from bench.prompts import prompt_text
from bench.record import RequestRecord
from bench.traces import TraceRow
from core.errors import ConfigError

TRACE = [TraceRow(100 + row, 10 + row) for row in range(64)]


def answer(num_in: int, num_out: int, num_chunks: int, **more: object) -> RequestRecord:
    times_s = tuple(float(chunk) for chunk in range(num_chunks))
    record = RequestRecord(
        index=0,
        started_s=0.0,
        finished_s=9.0,
        chunk_times_s=times_s,
        num_prompt_tokens=num_in,
        num_output_tokens=num_out,
        num_cached_tokens=int(str(more.get("num_cached_tokens", 0))),
        error=None if more.get("error") is None else str(more["error"]),
    )
    return record


def test_repeats_ask_for_equal_lengths_and_other_prompts() -> None:
    workload = ClosedLoop("load", 4, 8, input_len=20, output_len=5)
    plans = [workload.plan(f"0/{repeat}") for repeat in range(2)]
    first, second = ([*plan.items(workload.load)] for plan in plans)
    assert [item.input_len for item in first] == [20] * 8
    assert [item.output_len for item in second] == [5] * 8
    texts = {
        prompt_text(item, plan.prompt_seed(workload.load))
        for plan, items in zip(plans, (first, second), strict=True)
        for item in items
    }
    assert len(texts) == 16


def test_the_azure_workload_takes_lengths_from_all_over_the_trace() -> None:
    (azure,) = chosen(all_workloads(TRACE), ["azure"])
    assert isinstance(azure, ClosedLoop) and azure.trace is not None
    assert [row.input_len for row in azure.trace] == [100 + 4 * row for row in range(16)]
    assert azure.demand == Demand(8, 160 + 70)
    assert [item.output_len for item in azure.plan("0").items(azure.load)][:2] == [10, 14]


def test_a_server_is_told_of_the_longest_sequence_and_of_all_at_once() -> None:
    assert ClosedLoop("load", 32, 64).demand == Demand(32, 192)
    assert Arrival("short", 512).demand == Demand(5, 6_128)
    assert Arrival("long", 7_936).demand == Demand(5, 7_944)


def test_workloads_are_picked_by_name_and_unknown_ones_refused() -> None:
    picked = chosen(all_workloads(), ["prefill-1024", "start"])
    assert [workload.name for workload in picked] == ["start", "prefill-1024"]
    with pytest.raises(ConfigError, match="--trace"):
        chosen(all_workloads(), ["azure"])
    with pytest.raises(ConfigError, match="'fast' is none of start"):
        chosen(all_workloads(), ["fast"])


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (answer(20, 5, 5), None),
        (answer(20, 5, 4), None),
        (answer(21, 5, 5), "usage says 21, 5"),
        (answer(20, 4, 4), "usage says 20, 4"),
        (answer(20, 5, 1), "1 chunks"),
        (answer(20, 5, 5, num_cached_tokens=16), "16 of 20 prompt tokens"),
        (answer(0, 0, 0, error="HTTP 400"), "HTTP 400"),
    ],
)
def test_an_answer_of_another_length_than_asked_is_not_compared(
    record: RequestRecord, problem: str | None
) -> None:
    found = length_problem([record], {0: (20, 5)})
    assert found is None if problem is None else found is not None and problem in found


def test_a_streams_worst_gap_is_measured_against_its_own_quiet_median() -> None:
    even = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
    stalled = [0.0, 2.0, 4.0, 10.0]
    figures = arrival_figures([even, stalled], quiet=Window(0.0, 4.0), disturbed=Window(4.0, 8.0))
    assert figures["median_gap_ms"] == 1_500
    assert figures["worst_gap_ms"] == 6_000
    assert figures["worst_gap_over_own_median"] == 3.0
    assert figures["quiet_p99_ms"] <= 2_000


def test_a_stream_that_never_goes_on_is_stalled_until_the_answer_ends() -> None:
    figures = arrival_figures([[0.0, 1.0, 2.0]], quiet=Window(0.0, 2.0), disturbed=Window(2.0, 9.0))
    assert figures["worst_gap_ms"] == 7_000


def test_a_prompt_has_arrived_with_its_second_token() -> None:
    made = RequestRecord(0, started_s=1.0, finished_s=9.0, chunk_times_s=(5.0, 6.0, 7.0))
    assert arrived_s(made) == 6.0
    assert arrived_s(replace(made, chunk_times_s=(5.0,))) == 9.0


def test_a_stream_without_quiet_gaps_is_no_measurement() -> None:
    with pytest.raises(UnfairError):
        arrival_figures([[0.0, 9.0]], quiet=Window(0.0, 4.0), disturbed=Window(4.0, 9.0))
