"""Generated workloads: reproducible, within bounds, with the prefixes a trace asks for."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.arrivals import arrival_times_s
from bench.lengths import LengthRange, parse_lengths
from bench.load_plan import Load, LoadPlan, parse_sweep
from bench.prompts import TokenRange, parse_token_range, prompt_text, prompt_token_ids
from bench.traces import TraceRow
from bench.workload import WorkItem, at_speed, synthetic_items, take, trace_items
from core.errors import ConfigError

SEEDS = st.text("abc0123456789/", max_size=8)
RANGES = st.tuples(st.integers(1, 5000), st.integers(0, 5000)).map(
    lambda pair: LengthRange(pair[0], pair[0] + pair[1])
)
ROWS = st.builds(
    TraceRow,
    input_len=st.integers(1, 300),
    output_len=st.integers(1, 300),
    arrival_s=st.floats(0, 100),
    block_ids=st.lists(st.integers(0, 5), max_size=6).map(tuple),
    block_len=st.just(64),
)


@given(RANGES, RANGES, SEEDS)
def test_synthetic_requests_are_within_bounds_and_follow_from_the_seed(
    inputs: LengthRange, outputs: LengthRange, seed: str
) -> None:
    items = list(islice(synthetic_items(inputs, outputs, seed), 20))
    assert items == list(islice(synthetic_items(inputs, outputs, seed), 20))
    assert [item.index for item in items] == list(range(20))
    assert all(inputs.low <= item.input_len <= inputs.high for item in items)
    assert all(outputs.low <= item.output_len <= outputs.high for item in items)


def test_log_uniform_lengths_spend_as_many_draws_on_each_doubling() -> None:
    rng = random.Random(7)
    lengths = [LengthRange(8, 255).draw(rng) for _ in range(20_000)]
    octaves = [sum(8 * 2**k <= n < 16 * 2**k for n in lengths) for k in range(5)]
    assert sum(octaves) == len(lengths)
    assert all(abs(count - 4000) < 300 for count in octaves)


@given(SEEDS, SEEDS, st.integers(1, 50))
def test_prompts_have_their_length_and_differ_between_seeds(
    seed: str, other: str, num_tokens: int
) -> None:
    item = next(synthetic_items(LengthRange(num_tokens, num_tokens), LengthRange(1, 1), seed))
    tokens = TokenRange(100, 1_000_000)
    ids = prompt_token_ids(item, seed, tokens)
    assert len(ids) == num_tokens == len(prompt_text(item, seed).split(" "))
    assert all(tokens.low <= token_id < tokens.high for token_id in ids)
    assert (ids == prompt_token_ids(item, other, tokens)) == (seed == other)


@given(st.lists(ROWS, min_size=1, max_size=8), st.one_of(st.none(), st.integers(1, 200)))
def test_a_traces_requests_share_exactly_the_prefixes_their_blocks_share(
    rows: list[TraceRow], max_input_len: int | None
) -> None:
    items = list(trace_items(rows, max_input_len=max_input_len, max_output_len=None))
    prompts = [prompt_token_ids(item, "s", TokenRange(0, 10**12)) for item in items]
    for (row, prompt), (other_row, other) in itertools.combinations(
        zip(rows, prompts, strict=True), 2
    ):
        shared = _common(row.block_ids, other_row.block_ids) * 64
        assert _common(prompt, other) >= min(shared, len(prompt), len(other))
        if max(len(row.block_ids), len(other_row.block_ids)) * 64 > shared:
            assert _common(prompt, other) <= shared


def _common(one: list[int] | tuple[int, ...], other: list[int] | tuple[int, ...]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


@given(st.lists(ROWS, min_size=1, max_size=8))
def test_a_traces_requests_keep_their_lengths(rows: list[TraceRow]) -> None:
    items = list(trace_items(rows, max_input_len=100, max_output_len=50))
    assert [item.input_len for item in items] == [min(row.input_len, 100) for row in rows]
    assert [item.output_len for item in items] == [min(row.output_len, 50) for row in rows]


def test_a_text_stands_as_it_is() -> None:
    rows = [TraceRow(3, 5, text="What is a lease?")]
    (item,) = trace_items(rows, max_input_len=1, max_output_len=None)
    assert prompt_text(item, "any") == "What is a lease?"


@given(st.floats(0.1, 100), st.floats(0.2, 5), st.integers(0, 1000))
def test_arrivals_never_go_back_and_follow_from_the_seed(
    rate_rps: float, burstiness: float, seed: int
) -> None:
    times = list(islice(arrival_times_s(rate_rps, burstiness, random.Random(seed)), 50))
    assert times == sorted(times) and times[0] >= 0
    again = arrival_times_s(rate_rps, burstiness, random.Random(seed))
    assert times == list(islice(again, 50))


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_arrivals_have_the_rate_and_the_variation_asked_for(burstiness: float) -> None:
    times = list(islice(arrival_times_s(20.0, burstiness, random.Random(3)), 20_000))
    gaps = [b - a for a, b in itertools.pairwise([0.0, *times])]
    mean = sum(gaps) / len(gaps)
    variation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean
    assert mean == pytest.approx(1 / 20, rel=0.05)
    assert variation == pytest.approx(1 / math.sqrt(burstiness), rel=0.05)


def test_equal_plans_send_equal_requests_and_other_seeds_send_others() -> None:
    plan = LoadPlan(outputs=LengthRange(8, 256), num_requests=10)
    for load in (Load("rate", 5), Load("concurrency", 5)):
        assert list(plan.items(load)) == list(replace(plan).items(load))
        assert list(plan.items(load)) != list(replace(plan, seed="1").items(load))


def test_an_open_loop_of_given_duration_holds_only_what_arrives_in_it() -> None:
    plan = LoadPlan(duration_s=3.0)
    items = list(plan.items(Load("rate", 50)))
    assert 100 < len(items) < 200
    assert all(item.arrival_s < 3.0 for item in items)


def test_a_closed_loop_without_limits_sends_four_rounds() -> None:
    assert len(list(LoadPlan().items(Load("concurrency", 8)))) == 32
    assert len(list(LoadPlan().items(Load("concurrency", 1)))) == 16
    assert len(list(LoadPlan(num_requests=3).items(Load("concurrency", 8)))) == 3


def test_loads_repetitions_and_warm_up_share_no_prompt() -> None:
    plan = LoadPlan(num_requests=2, warmup=2)
    loads = (Load("concurrency", 1), Load("concurrency", 2), Load("rate", 2))
    prompts = {
        tuple(prompt_token_ids(item, plan.prompt_seed(load), TokenRange()))
        for load in loads
        for item in plan.items(load)
    }
    prompts |= {
        tuple(prompt_token_ids(item, plan.warmup_seed, TokenRange()))
        for item in plan.warmup_items()
    }
    assert len(prompts) == 8


def test_a_trace_is_replayed_from_its_first_row_at_the_speed_asked_for() -> None:
    items = [WorkItem(i, (), 1, arrival_s=at_s) for i, at_s in enumerate([100.0, 104.0, 110.0])]
    assert [item.arrival_s for item in at_speed(items, 2.0)] == [0.0, 2.0, 5.0]


def test_taking_by_time_ends_at_the_first_late_arrival() -> None:
    items = [WorkItem(i, (), 1, arrival_s=at_s) for i, at_s in enumerate([0.0, 1.0, 2.0])]
    assert len(list(take(iter(items), num_requests=None, duration_s=2.0))) == 2
    assert len(list(take(iter(items), num_requests=1, duration_s=2.0))) == 1


def test_a_sweep_names_its_loads() -> None:
    loads = parse_sweep("concurrency=1,2,8")
    assert [load.label for load in loads] == ["concurrency=1", "concurrency=2", "concurrency=8"]
    assert parse_sweep("rate=0.5") == (Load("rate", 0.5),)


@pytest.mark.parametrize("text", ["1,2", "speed=1", "rate=", "concurrency=1.5", "rate=-1"])
def test_a_malformed_sweep_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_sweep(text)


@pytest.mark.parametrize("text", ["0", "9:3", "many", "1:2:3"])
def test_a_malformed_length_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_lengths(text)


@pytest.mark.parametrize("text", ["5", "9:3", "a:b"])
def test_a_malformed_token_range_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_token_range(text)
