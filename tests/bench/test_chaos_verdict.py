"""The verdict of a chaos run is a plain function of what was written down."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.chaos.verdict import (
    Books,
    Evidence,
    FaultDone,
    Memory,
    Outcome,
    Result,
    judge,
    longest_stall_s,
    silence_s,
)

RIGHT = Outcome(0, "ask", Result.RIGHT, 0.0, 3.0, (0.5, 1.0, 3.0))
GOOD = Evidence(
    outcomes=(RIGHT, Outcome(1, "ask", Result.LEFT, 0.0, 1.0, num_refused=2, num_cut_off=1)),
    faults=(FaultDone("kill P", "prefill-0", 1.5, 6.5), FaultDone("kill P", "prefill-0", 9, 12)),
    faults_within={"kv_send corrupt": 3},
    books=(Books("prefill-0", 320, 320),),
    memory_before=(Memory("decode-1", 100.0, 60.0), Memory("decode-0", 100.0, 60.0)),
    memory_after=(Memory("decode-1", 120.0, 63.0),),
)


def test_a_run_in_which_nothing_bad_happened_holds() -> None:
    verdict = judge(GOOD)
    assert verdict.holds
    assert verdict.num_faults == 5
    assert verdict.faults_by_kind == {"kill P": 2, "kv_send corrupt": 3}
    assert (verdict.num_requests, verdict.num_refused, verdict.num_cut_off) == (2, 2, 1)
    assert verdict.results == {"right": 1, "left": 1}
    assert verdict.longest_stall_s == 2.0
    assert verdict.median_silence_s == 1.5
    assert verdict.worst_silence_s == {"kill P": 1.5}
    assert verdict.median_serves_again_s == 4.0


@pytest.mark.parametrize(
    "bad",
    [
        replace(GOOD, outcomes=(replace(RIGHT, result=Result.LOST),)),
        replace(GOOD, outcomes=(replace(RIGHT, result=Result.DOUBLED),)),
        replace(GOOD, outcomes=(replace(RIGHT, result=Result.WRONG),)),
        replace(GOOD, books=(Books("decode-0", 320, 319),)),
        replace(GOOD, books=(Books("decode-0", 320, 320, "inconsistent"),)),
        replace(GOOD, crashes=("decode-0 ended",)),
        replace(GOOD, orphans=("process 7",)),
        replace(GOOD, faults=(FaultDone("kill D", "decode-0", 1.0, None, "not ready"),)),
    ],
)
def test_each_thing_that_must_not_happen_breaks_it(bad: Evidence) -> None:
    assert not judge(bad).holds


def test_memory_is_compared_where_a_process_lived_through_the_run() -> None:
    verdict = judge(GOOD)
    assert verdict.memory_growth == {"decode-1": pytest.approx(0.03)}
    assert verdict.num_grown == 0
    assert judge(replace(GOOD, memory_after=(Memory("decode-1", 100.0, 66.0),))).num_grown == 1


def test_a_fault_costs_what_the_longest_silence_of_a_stream_of_that_moment_is() -> None:
    other = replace(RIGHT, token_times_s=(1.0, 1.6, 2.0))
    later = replace(RIGHT, started_s=1.55, token_times_s=(1.6, 9.0))
    assert silence_s(1.5, [RIGHT, other, later]) == 1.5
    assert silence_s(50.0, [RIGHT]) is None


def test_output_that_was_on_its_way_at_the_fault_does_not_hide_the_silence_after_it() -> None:
    hit = replace(RIGHT, token_times_s=(1.0, 1.51, 7.5))
    assert silence_s(1.5, [hit]) == pytest.approx(5.99)


def test_a_stream_that_waits_for_its_first_token_is_hit_too() -> None:
    waiting = replace(RIGHT, started_s=1.4, token_times_s=(8.5, 8.6))
    assert silence_s(1.5, [RIGHT, waiting]) == 7.0


def test_without_streams_there_is_no_stall() -> None:
    assert longest_stall_s([replace(RIGHT, token_times_s=())]) == 0.0
