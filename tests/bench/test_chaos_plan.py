"""The plan of a chaos run, and what its clients ask, follow from the seed."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest

from bench.chaos.asks import Sizes, catalogue, visits
from bench.chaos.plan import LASTING_S, SPECS, FaultKind, make_plan
from core.config import FaultsConfig
from core.errors import ConfigError

TARGETS = {
    FaultKind.KILL_PREFILL: ["prefill-0"],
    FaultKind.STOP_DECODE: ["decode-0", "decode-1"],
    FaultKind.KILL_STORE: ["store"],
}
SIZES = Sizes(3, 258)


def test_a_seed_gives_the_same_plan_every_time() -> None:
    plans = [make_plan(TARGETS, seed=s, duration_s=600, period_s=8) for s in (7, 7, 8)]
    assert plans[0] == plans[1] != plans[2]


def test_ten_minutes_have_at_least_sixty_faults_of_all_kinds_that_the_house_offers() -> None:
    for seed in range(20):
        plan = make_plan(TARGETS, seed=seed, duration_s=600, period_s=8)
        assert len(plan) >= 60
        assert {fault.kind for fault in plan[: len(TARGETS)]} == set(TARGETS)
        assert all(fault.target in TARGETS[fault.kind] for fault in plan)


def test_faults_come_in_order_within_the_time_and_never_in_a_heap() -> None:
    plan = make_plan(TARGETS, seed=1, duration_s=300, period_s=8)
    assert plan[0].at_s > 0 and plan[-1].at_s <= 300
    assert all(3.9 < later.at_s - earlier.at_s < 12.1 for earlier, later in pairwise(plan))


def test_what_ends_by_itself_lasts_and_nothing_else_does() -> None:
    for fault in make_plan(TARGETS, seed=2, duration_s=600, period_s=8):
        low, high = LASTING_S.get(fault.kind, (0.0, 0.0))
        assert low <= fault.for_s <= high


def test_every_fault_in_transfers_is_one_that_workers_know_and_all_are_met() -> None:
    plan = make_plan(TARGETS, seed=3, duration_s=600, period_s=8)
    met = {fault.spec for fault in plan if fault.kind is FaultKind.KILL_PREFILL}
    assert met == {"", *SPECS[FaultKind.KILL_PREFILL]}
    for spec in {spec for specs in SPECS.values() for spec in specs}:
        assert FaultsConfig(spec=spec).spec == spec


def test_a_house_without_faults_is_refused() -> None:
    with pytest.raises(ConfigError, match="offers no kind"):
        make_plan({FaultKind.KILL_RANK: []}, seed=0, duration_s=10, period_s=1)


def test_asks_are_a_mix_that_a_seed_repeats() -> None:
    asks = catalogue("tiny", SIZES, seed=0, count=40)
    assert asks == catalogue("tiny", SIZES, seed=0, count=40)
    assert len({ask.name for ask in asks}) == 40
    for test in (
        {ask.streams for ask in asks},
        {ask.body["n"] == 2 for ask in asks},
        {ask.body["temperature"] == 0.0 for ask in asks},
        {"messages" in ask.body for ask in asks},
        {"logprobs" in ask.body for ask in asks},
    ):
        assert test == {True, False}
    sampled = [ask for ask in asks if ask.body["temperature"]]
    assert all("seed" in ask.body for ask in sampled)


def test_visits_repeat_with_the_seed_and_some_clients_leave() -> None:
    asks = catalogue("tiny", SIZES, seed=0, count=10)
    some = list(islice(visits(asks, seed=5), 400))
    assert some == list(islice(visits(asks, seed=5), 400))
    assert [visit.number for visit in some] == list(range(400))
    leaving = sum(visit.leaves_after_s is not None for visit in some)
    assert 30 < leaving < 90
    salts = {visit.salt for visit in some}
    assert "" in salts and 8 < len(salts) < 16


def test_a_payload_is_the_ask_with_its_salt() -> None:
    ask = catalogue("tiny", SIZES, seed=0, count=1)[0]
    head, _, body = ask.payload("127.0.0.1:80", "abc").partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b'"cache_salt": "abc"' in body
    assert b"cache_salt" not in ask.payload("127.0.0.1:80", "")
