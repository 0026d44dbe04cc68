"""The choice of a pair: a pure function, so everything about it can be said as a property."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from core.load import LoadReport
from core.request import Phase
from router.fleet.policy import (
    Demand,
    NoPair,
    Pair,
    PolicySettings,
    WorkerView,
    choose_decode,
    choose_pair,
)

SETTINGS = PolicySettings(max_num_waiting=10)
COMBINED = PolicySettings(combined=True, max_num_waiting=10)
DEMAND = Demand(num_tokens=160, num_new_tokens=32)


def worker(name: str, role: Phase, **changes: Any) -> WorkerView:
    load = LoadReport(kv_blocks={"free": 100})
    load = replace(load, **{k: v for k, v in changes.items() if k in LoadReport.__slots__})
    view = WorkerView(name, f"epoch-{name}", role, "key", 16, load)
    return replace(view, **{k: v for k, v in changes.items() if k not in LoadReport.__slots__})


def p(name: str = "p", **changes: Any) -> WorkerView:
    return worker(name, Phase.PREFILL, **changes)


def d(name: str = "d", **changes: Any) -> WorkerView:
    return worker(name, Phase.DECODE, **changes)


def chosen(*workers: WorkerView, **cached: int) -> tuple[str, str]:
    """Names of the pair; `cached` are blocks by worker name."""
    blocks = {f"epoch-{name}": count for name, count in cached.items()}
    pair = choose_pair(workers, DEMAND, blocks, SETTINGS)
    assert isinstance(pair, Pair) and pair.prefill and pair.decode
    return pair.prefill.worker_id, pair.decode.worker_id


def test_the_shortest_prefill_queue_is_chosen() -> None:
    assert chosen(p("a", waiting_prefill_tokens=500), p("b"), d())[0] == "b"


def test_what_was_just_assigned_counts_as_load() -> None:
    assert chosen(p("a", assigned_prefill_tokens=1), p("b"), d())[0] == "b"
    assert chosen(p(), d("a", assigned_sequences=1), d("b"))[1] == "b"


def test_idle_workers_take_turns() -> None:
    assert chosen(p("a", num_routed=3), p("b", num_routed=2), d())[0] == "b"
    assert chosen(p(), d("a", num_routed=2), d("b", num_routed=3))[1] == "a"


def test_a_cached_prefix_outweighs_as_long_a_queue_and_not_a_longer_one() -> None:
    assert chosen(p("a", waiting_prefill_tokens=79), p("b"), d(), a=5)[0] == "a"
    assert chosen(p("a", waiting_prefill_tokens=81), p("b"), d(), a=5)[0] == "b"


def test_without_affinity_only_load_counts() -> None:
    blind = PolicySettings(prefix_affinity_weight=0.0)
    workers = [p("a", waiting_prefill_tokens=1), p("b"), d()]
    pair = choose_pair(workers, DEMAND, {"epoch-a": 10}, blind)
    assert isinstance(pair, Pair) and pair.prefill and pair.prefill.worker_id == "b"


def test_a_decode_worker_without_room_is_the_last_resort() -> None:
    full = d("a", kv_blocks={"free": 5, "cached": 6})
    busy = d("b", num_running=50)
    assert chosen(p(), full, busy)[1] == "b"
    assert chosen(p(), full)[1] == "a"


def test_promised_and_assigned_blocks_are_not_free() -> None:
    assert chosen(p(), d("a", num_promised_blocks=95), d("b", num_running=1))[1] == "b"
    assert chosen(p(), d("a", assigned_blocks=95), d("b", num_running=1))[1] == "b"


def test_only_equal_compat_keys_are_paired() -> None:
    workers = [p("a"), d("b", compat_key="other")]
    none = choose_pair(workers, DEMAND, {}, SETTINGS)
    assert isinstance(none, NoPair) and none.reason == "no_worker"
    assert "compat keys" in none.message
    assert chosen(*workers, p("c", compat_key="other", waiting_prefill_tokens=9)) == ("c", "b")


def test_workers_that_just_failed_are_left_out_unless_they_are_the_only_ones() -> None:
    demand = replace(DEMAND, excluded=frozenset({"epoch-a"}))
    pair = choose_pair([p("a"), p("b", num_running=9), d()], demand, {}, SETTINGS)
    assert isinstance(pair, Pair) and pair.prefill and pair.prefill.worker_id == "b"
    pair = choose_pair([p("a"), d()], demand, {}, SETTINGS)
    assert isinstance(pair, Pair) and pair.prefill and pair.prefill.worker_id == "a"


def reason(*workers: WorkerView, settings: PolicySettings = SETTINGS) -> str:
    none = choose_pair(workers, DEMAND, {}, settings)
    assert isinstance(none, NoPair)
    return none.reason


def test_the_reason_tells_why_there_is_no_pair() -> None:
    assert reason() == "no_worker"
    assert reason(d()) == "no_worker"
    assert reason(p()) == "no_worker"
    assert reason(p(ready=False), d()) == "no_worker"
    assert reason(p(draining=True), d()) == "draining"
    assert reason(p(num_waiting=10), d()) == "saturated"
    assert reason(p(num_waiting=9, assigned_sequences=1), d()) == "saturated"
    assert reason(p(num_waiting=10), p("q", draining=True), d()) == "saturated"
    assert reason(p(), settings=COMBINED) == "no_worker"


def test_a_single_token_needs_no_decode_worker() -> None:
    pair = choose_pair([p()], replace(DEMAND, num_new_tokens=1), {}, SETTINGS)
    assert isinstance(pair, Pair) and pair.prefill and pair.decode is None


def test_combined_mode_uses_decode_workers_alone() -> None:
    pair = choose_pair([p(), d("a", waiting_prefill_tokens=9), d("b")], DEMAND, {}, COMBINED)
    assert isinstance(pair, Pair)
    assert pair.prefill is None and pair.decode and pair.decode.worker_id == "b"


def test_in_combined_mode_a_short_prefix_does_not_outweigh_many_sequences() -> None:
    workers = [d("a", num_running=50), d("b")]
    pair = choose_pair(workers, DEMAND, {"epoch-a": 2}, COMBINED)
    assert isinstance(pair, Pair) and pair.decode and pair.decode.worker_id == "b"


loads = st.builds(
    LoadReport,
    num_waiting=st.integers(0, 12),
    num_running=st.integers(0, 9),
    waiting_prefill_tokens=st.integers(0, 2000),
    kv_blocks=st.fixed_dictionaries({"free": st.integers(0, 50), "cached": st.integers(0, 50)}),
    num_promised_blocks=st.integers(0, 20),
    ready=st.booleans(),
    draining=st.booleans(),
)
fleets = st.lists(
    st.builds(
        WorkerView,
        worker_id=st.just("w"),
        epoch=st.uuids().map(str),
        role=st.sampled_from(Phase),
        compat_key=st.sampled_from(["a", "b"]),
        block_size=st.just(16),
        load=loads,
        draining=st.booleans(),
        num_routed=st.integers(0, 3),
    ),
    max_size=8,
)


@given(fleets, st.integers(1, 40), st.sampled_from([SETTINGS, COMBINED]))
def test_a_pair_is_found_exactly_when_one_may_be_used(
    fleet: list[WorkerView], num_new_tokens: int, settings: PolicySettings
) -> None:
    demand = Demand(num_tokens=100, num_new_tokens=num_new_tokens)
    usable = [
        w
        for w in fleet
        if w.load.ready
        and not (w.draining or w.load.draining)
        and w.load.num_waiting < settings.max_num_waiting
    ]
    keys = {role: {w.compat_key for w in usable if w.role is role} for role in Phase}
    if settings.combined:
        possible = bool(keys[Phase.DECODE])
    elif num_new_tokens == 1:
        possible = bool(keys[Phase.PREFILL])
    else:
        possible = bool(keys[Phase.PREFILL] & keys[Phase.DECODE])
    result = choose_pair(fleet, demand, {}, settings)
    assert isinstance(result, Pair) == possible
    if isinstance(result, Pair):
        members = [w for w in (result.prefill, result.decode) if w]
        assert all(w in usable for w in members)
        assert len({w.compat_key for w in members}) == 1
    assert choose_pair(fleet, demand, {}, settings) == result, "the same state, the same choice"


@given(fleets)
def test_no_usable_prefill_worker_of_the_chosen_key_has_a_shorter_queue(
    fleet: list[WorkerView],
) -> None:
    pair = choose_pair(fleet, DEMAND, {}, SETTINGS)
    if isinstance(pair, NoPair) or pair.prefill is None:
        return
    rivals = [
        w
        for w in fleet
        if w.role is Phase.PREFILL
        and w.compat_key == pair.prefill.compat_key
        and w.load.ready
        and not (w.draining or w.load.draining)
        and w.load.num_waiting < SETTINGS.max_num_waiting
    ]
    assert pair.prefill.prefill_tokens == min(w.prefill_tokens for w in rivals)


def test_running_kv_goes_to_the_least_busy_usable_decode_worker_of_its_key() -> None:
    workers = [
        p("p"),
        d("drains", draining=True),
        d("other", compat_key="other"),
        d("busy", num_running=5),
        d("free", num_running=2),
    ]
    heir = choose_decode(workers, DEMAND, "key", SETTINGS)
    assert heir is not None and heir.worker_id == "free"
    failed = replace(DEMAND, excluded=frozenset({"epoch-free"}))
    heir = choose_decode(workers, failed, "key", SETTINGS)
    assert heir is not None and heir.worker_id == "busy"
    heir = choose_decode(workers[-1:], failed, "key", SETTINGS)
    assert heir is not None and heir.worker_id == "free", "better than none"
    assert choose_decode(workers[:3], DEMAND, "key", SETTINGS) is None
