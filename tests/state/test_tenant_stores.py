"""Keys and usage in a file and on Redis; limits that hold over all routers on Redis."""

from __future__ import annotations

import asyncio
import dataclasses
import time
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from core.errors import ConfigError
from state.api_key import is_secret_of, new_key, split_key
from state.file_tenants import FileTenants
from state.redis_tenants import RedisTenants
from state.tenants import (
    KeyLimits,
    LimitDemand,
    LimitVerdict,
    PriorityClass,
    Settlement,
    TenantStore,
    UsageRow,
    key_from_json,
)

DEADLINE_S = 20.0
DAY = "2026-11-30"
ROW = UsageRow(DAY, "k", "m", False, 1, 10, 4, 5, 12, 900, 7)

OpenStore: TypeAlias = Callable[[], TenantStore]


@pytest.fixture(params=["file", "redis"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    if request.param == "file":
        return lambda: FileTenants(tmp_path / "sub" / "tenants.db", DEADLINE_S)
    url: str = request.getfixturevalue("redis_url")
    namespace = uuid.uuid4().hex
    return lambda: RedisTenants(url, namespace, DEADLINE_S)


def run(open_store: OpenStore, check: Callable[[TenantStore], Awaitable[None]]) -> None:
    async def body() -> None:
        store = open_store()
        try:
            await check(store)
        finally:
            await store.close()

    asyncio.run(body())


# ---- keys


def test_a_key_is_stored_as_a_hash_and_found_by_its_id() -> None:
    key, record = new_key("alice", now=5.0)
    parts = split_key(key)
    assert parts is not None and parts[0] == record.key_id
    assert is_secret_of(parts[1], record)
    assert parts[1] not in record.to_json()
    assert not is_secret_of(parts[1][:-1] + "~", record)
    assert not is_secret_of(parts[1], None)


@pytest.mark.parametrize("text", ["", "sk-other", "sk-tandem-", "sk-tandem-xyz-abc", "none"])
def test_what_is_no_key_has_no_parts(text: str) -> None:
    assert split_key(text) is None


def test_a_record_survives_its_json_and_what_newer_releases_add() -> None:
    _, record = new_key(
        "bob",
        now=1.0,
        priority_class=PriorityClass.BATCH,
        limits=KeyLimits(1, 2, 3, 4, 5),
        models=["m"],
        endpoints=["/v1"],
    )
    assert key_from_json(record.to_json()) == record
    assert key_from_json(record.to_json()[:-1] + ', "newer": 1}') == record


def test_keys_are_put_replaced_and_listed_in_order(open_store: OpenStore) -> None:
    async def check(store: TenantStore) -> None:
        _, second = new_key("second", now=2.0)
        _, first = new_key("first", now=1.0)
        await store.put_key(second)
        await store.put_key(first)
        assert await store.keys() == (first, second)
        revoked = dataclasses.replace(first, revoked_at=3.0)
        await store.put_key(revoked)
        assert await store.get_key(first.key_id) == revoked
        assert await store.get_key("nobody") is None

    run(open_store, check)


def test_two_processes_see_each_others_keys(open_store: OpenStore) -> None:
    async def check(store: TenantStore) -> None:
        other = open_store()
        _, record = new_key("alice", now=1.0)
        await other.put_key(record)
        assert await store.get_key(record.key_id) == record
        await other.close()

    run(open_store, check)


def test_a_file_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("")
    with pytest.raises(ConfigError, match=r"tenants\.file"):
        FileTenants(tmp_path / "plain" / "tenants.db", DEADLINE_S)


def test_only_the_owner_reads_the_file(tmp_path: Path) -> None:
    store = FileTenants(tmp_path / "tenants.db", DEADLINE_S)
    assert (tmp_path / "tenants.db").stat().st_mode & 0o077 == 0
    asyncio.run(store.close())


# ---- usage


def test_usage_adds_up_by_day_key_model_and_kind(open_store: OpenStore) -> None:
    async def check(store: TenantStore) -> None:
        batch = dataclasses.replace(ROW, batch=True)
        other = dataclasses.replace(ROW, key_id="l", cached_tokens=0)
        await store.settle("r", 1, [Settlement("k", DAY, KeyLimits(), usage=(ROW, batch))])
        await store.settle("r", 2, [Settlement("k", DAY, KeyLimits(), usage=(ROW,))])
        await store.settle("r", 3, [Settlement("l", DAY, KeyLimits(), usage=(other,))])
        assert await store.usage(DAY) == (ROW.plus(ROW), batch, other)
        assert await store.usage(DAY, "l") == (other,)
        assert await store.usage("2026-12-01") == ()

    run(open_store, check)


def test_a_batch_that_is_sent_again_is_taken_once(open_store: OpenStore) -> None:
    async def check(store: TenantStore) -> None:
        batch = [Settlement("k", DAY, KeyLimits(), usage=(ROW,))]
        for sequence in (1, 1, 2, 1, 2):
            await store.settle("r", sequence, batch)
        await store.settle("another router", 1, batch)
        assert await store.usage(DAY) == (ROW.plus(ROW).plus(ROW),)

    run(open_store, check)


# ---- limits


@pytest.fixture
def redis_tenants(redis_url: str) -> Callable[[], RedisTenants]:
    namespace = uuid.uuid4().hex
    return lambda: RedisTenants(redis_url, namespace, DEADLINE_S)


def with_redis(
    open_redis: Callable[[], RedisTenants], check: Callable[[RedisTenants], Awaitable[None]]
) -> None:
    async def body() -> None:
        store = open_redis()
        try:
            await check(store)
        finally:
            await store.close()

    asyncio.run(body())


def ask(limits: KeyLimits, *, tokens: int = 1, lease: str | None = None) -> LimitDemand:
    return LimitDemand("k", limits, DAY, 1, tokens, lease, 60.0)


def test_two_routers_share_one_limit(redis_tenants: Callable[[], RedisTenants]) -> None:
    async def check(store: RedisTenants) -> None:
        other, limits = redis_tenants(), KeyLimits(requests_per_minute=20)
        stores = [store, other] * 30
        verdicts = await asyncio.gather(*(each.acquire(ask(limits)) for each in stores))
        granted = sum(not v.denial for v in verdicts)
        # What refills while they ask is a third of a request a second.
        assert 20 <= granted <= 24
        denied = next(v for v in verdicts if v.denial)
        assert denied.denial == "requests" and 0 < denied.retry_after_s <= 3.0
        await other.close()

    with_redis(redis_tenants, check)


def test_a_demand_takes_all_or_nothing(redis_tenants: Callable[[], RedisTenants]) -> None:
    async def check(store: RedisTenants) -> None:
        limits = KeyLimits(requests_per_minute=10, tokens_per_minute=100, daily_tokens=150)
        started = time.monotonic()

        async def verdict(tokens: int) -> LimitVerdict:
            return await store.acquire(ask(limits, tokens=tokens))

        assert (await verdict(90)).denial == ""
        refused = await verdict(60)
        assert refused.denial == "tokens" and refused.quota_used == 90
        assert refused.requests is not None and refused.requests.remaining == 9
        refilled = 100 * (time.monotonic() - started) / 60
        assert refused.tokens is not None and 10 <= refused.tokens.remaining <= 10 + refilled
        assert (await verdict(61)).denial == "quota"
        roomy = dataclasses.replace(limits, daily_tokens=None)
        assert (await store.acquire(ask(roomy, tokens=101))).denial == "too_large"

    with_redis(redis_tenants, check)


def test_settling_gives_back_takes_more_and_ends_leases(
    redis_tenants: Callable[[], RedisTenants],
) -> None:
    async def check(store: RedisTenants) -> None:
        limits = KeyLimits(
            requests_per_minute=2, tokens_per_minute=100, max_concurrency=1, daily_tokens=1000
        )
        assert (await store.acquire(ask(limits, tokens=100, lease="a"))).denial == ""
        assert (await store.acquire(ask(limits, tokens=1, lease="b"))).denial == "concurrency"
        back = Settlement(
            "k", DAY, limits, ("a",), num_requests=-1, num_tokens=-100, quota_tokens=-100
        )
        await store.settle("r", 1, [back])
        again = await store.acquire(ask(limits, tokens=100, lease="b"))
        assert again.denial == "" and again.quota_used == 100
        debt = Settlement("k", DAY, limits, ("b",), num_tokens=200, quota_tokens=200)
        await store.settle("r", 2, [debt])
        refused = await store.acquire(ask(limits, tokens=1))
        assert refused.denial == "tokens" and 100 < refused.retry_after_s <= 121
        assert refused.quota_used == 300

    with_redis(redis_tenants, check)


def test_a_lease_whose_router_died_ends_by_itself(
    redis_tenants: Callable[[], RedisTenants],
) -> None:
    async def check(store: RedisTenants) -> None:
        limits = KeyLimits(max_concurrency=1)
        short = dataclasses.replace(ask(limits, lease="dead"), lease_s=0.05)
        assert (await store.acquire(short)).denial == ""
        async with asyncio.timeout(DEADLINE_S):
            while (await store.acquire(ask(limits, lease="next"))).denial:
                await asyncio.sleep(0)

    with_redis(redis_tenants, check)


def test_what_was_granted_alone_is_not_left_in_the_shared_bucket(
    redis_tenants: Callable[[], RedisTenants],
) -> None:
    async def check(store: RedisTenants) -> None:
        limits = KeyLimits(requests_per_minute=100, tokens_per_minute=100)
        await store.settle("r", 1, [Settlement("k", "", limits, shares=(0.25, 1.0))])
        verdict = await store.acquire(ask(limits, tokens=1))
        assert verdict.requests is not None and verdict.tokens is not None
        assert 24 <= verdict.requests.remaining <= 40
        assert verdict.tokens.remaining == 99

    with_redis(redis_tenants, check)


def test_routers_are_counted_while_they_beat(redis_tenants: Callable[[], RedisTenants]) -> None:
    async def check(store: RedisTenants) -> None:
        assert await store.beat("one", ttl_s=60) == 1
        assert await store.beat("two", ttl_s=0.02) == 2
        async with asyncio.timeout(DEADLINE_S):
            while await store.beat("one", ttl_s=60) != 1:
                await asyncio.sleep(0)

    with_redis(redis_tenants, check)
