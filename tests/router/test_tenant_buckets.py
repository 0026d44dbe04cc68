"""Rates of a key: what one router grants, alone or as one of several."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.tenants.answer_headers import duration
from router.tenants.buckets import PERIOD_S, TokenBucket
from router.tenants.local_limits import LocalLimits
from state.tenants import KeyLimits, LimitDemand, Settlement

DAY = "2026-11-30"


def demand(limits: KeyLimits, *, tokens: int = 1, lease: str | None = None) -> LimitDemand:
    return LimitDemand("k", limits, DAY, 1, tokens, lease, 60.0)


@settings(deadline=None)
@given(
    limit=st.integers(1, 1000),
    asks=st.lists(st.tuples(st.floats(0, 30), st.integers(0, 400)), max_size=60),
)
def test_over_any_window_no_more_is_granted_than_a_full_bucket_and_its_refill(
    limit: int, asks: list[tuple[float, int]]
) -> None:
    bucket, now = TokenBucket.full(limit, 0.0), 0.0
    granted: list[tuple[float, int]] = []
    for pause_s, cost in asks:
        now += pause_s
        if cost <= limit and bucket.wait_s(cost, now) == 0:
            bucket.take(cost, now)
            granted.append((now, cost))
    for first, (start, _) in enumerate(granted):
        total = 0
        for at, cost in granted[first:]:
            total += cost
            assert total <= limit * (1 + (at - start) / PERIOD_S) + 1e-6


@settings(deadline=None)
@given(limit=st.integers(1, 1000), spent=st.integers(0, 3000), cost=st.integers(1, 1000))
def test_who_waits_as_long_as_told_is_granted(limit: int, spent: int, cost: int) -> None:
    def wait_s(now: float) -> float:
        bucket = TokenBucket.full(limit, 0.0)
        bucket.take(spent, 0.0)
        return bucket.wait_s(cost, now)

    told_s = wait_s(0.0)
    assert wait_s(told_s + 1e-3) == 0
    if told_s > 1e-3:
        assert wait_s(told_s - 1e-3) > 0


def test_what_is_given_back_can_be_granted_again_and_never_exceeds_the_limit() -> None:
    bucket = TokenBucket.full(10, 0.0)
    bucket.take(10, 0.0)
    bucket.take(-4, 0.0)
    assert bucket.wait_s(4, 0.0) == 0 and bucket.wait_s(5, 0.0) > 0
    bucket.take(-99, 0.0)
    assert bucket.level == 10


@settings(deadline=None)
@given(st.integers(1, 5), st.lists(st.integers(1, 50), max_size=100))
def test_routers_that_count_alone_grant_no_more_together_than_the_limit(
    num_routers: int, costs: list[int]
) -> None:
    limits = KeyLimits(tokens_per_minute=500)
    routers = [LocalLimits() for _ in range(num_routers)]
    granted = 0
    for i, cost in enumerate(costs):
        router = routers[i % num_routers]
        router.num_routers = num_routers
        if not router.acquire(demand(limits, tokens=cost), now=0.0).denial:
            granted += cost
    assert granted <= 500


def test_a_demand_is_granted_whole_or_not_at_all() -> None:
    limits = KeyLimits(requests_per_minute=5, tokens_per_minute=100)
    local = LocalLimits()
    assert local.acquire(demand(limits, tokens=80), 0.0).denial == ""
    refused = local.acquire(demand(limits, tokens=80), 0.0)
    assert refused.denial == "tokens" and refused.retry_after_s == pytest.approx(36.0)
    assert refused.requests is not None and refused.requests.remaining == 4
    assert local.acquire(demand(limits, tokens=101), 0.0).denial == "too_large"


def test_leases_bound_what_runs_at_once_and_come_back() -> None:
    limits = KeyLimits(max_concurrency=2)
    local = LocalLimits()
    assert not local.acquire(demand(limits, lease="a"), 0.0).denial
    assert not local.acquire(demand(limits, lease="b"), 0.0).denial
    assert local.acquire(demand(limits, lease="c"), 0.0).denial == "concurrency"
    assert not local.acquire(demand(limits), 0.0).denial, "another prompt of a call inside"
    local.settle(Settlement("k", DAY, limits, lease_ids=("a",)), 0.0)
    assert not local.acquire(demand(limits, lease="c"), 0.0).denial


def test_a_day_has_a_quota_and_the_next_one_a_new_one() -> None:
    limits = KeyLimits(daily_tokens=100)
    local = LocalLimits()
    local.note_quota("k", DAY, 90)
    assert local.acquire(demand(limits, tokens=11), 0.0).denial == "quota"
    assert local.acquire(demand(limits, tokens=10), 0.0).denial == ""
    local.settle(Settlement("k", DAY, limits, quota_tokens=-10), 0.0)
    assert local.acquire(demand(limits, tokens=10), 0.0).denial == ""
    tomorrow = replace(demand(limits, tokens=100), day="2026-12-01")
    assert local.acquire(tomorrow, 0.0).denial == ""


def test_what_the_shared_limits_granted_is_not_granted_again_alone() -> None:
    limits = KeyLimits(requests_per_minute=10)
    local = LocalLimits()
    local.num_routers = 2
    for _ in range(10):
        local.shadow(demand(limits), 0, 0.0)
    assert local.acquire(demand(limits), 0.0).denial == "requests"
    assert local.shares_left(0.0) == {"k": (0.0, 1.0)}
    assert local.acquire(demand(limits), 12.0).denial == "", "its share fills in a minute"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0ms"), (0.0171, "18ms"), (6.25, "6.25s"), (90, "1m30s"), (7500, "2h5m0s")],
)
def test_durations_are_written_as_openai_writes_them(seconds: float, text: str) -> None:
    assert duration(seconds) == text
