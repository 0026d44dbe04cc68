"""Limits over several routers, with the store there, away, and back."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import redis_server
from fakes_house import MODEL, House, Texts
from fakes_pull import DEADLINE_S
from fakes_tenants import bearer, keyed_house, make_key, open_store, put_keys, redis_settings

from state.tenants import KeyRecord

PROMPT = list(range(100, 140))
SHORT_S = 0.5


@pytest.fixture
def server(redis_binary: redis_server.Binary) -> Iterator[redis_server.RedisServer]:
    """A server of our own, since we take it away."""
    with redis_server.running(redis_binary) as server:
        yield server


@contextlib.asynccontextmanager
async def two_houses(
    texts: Texts, settings: dict[str, Any], *records: KeyRecord
) -> AsyncIterator[tuple[House, House]]:
    """Two routers that share their tenants, each with workers of its own."""
    async with (
        keyed_house(texts, settings, *records) as one,
        keyed_house(texts, settings) as other,
    ):
        await until_they_know_each_other(one, other)
        yield one, other


async def until_they_know_each_other(*houses: House) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while any(limits(h).num_routers != len(houses) for h in houses):
            await asyncio.sleep(0)


def limits(h: House) -> Any:
    accounts = h.router.door.hall.accounts
    assert accounts is not None
    return accounts.limits


async def ask(h: House, key: str, **fields: Any) -> httpx.Response:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 2} | fields
    return await h.http.post("/v1/completions", json=body, headers=bearer(key))


async def statuses(houses: tuple[House, ...], key: str, count: int) -> Counter[int]:
    """Of `count` requests, at the routers in turns."""
    asking = [ask(houses[i % len(houses)], key) for i in range(count)]
    return Counter(response.status_code for response in await asyncio.gather(*asking))


def test_two_routers_grant_one_limit(texts: Texts, redis_url: str) -> None:
    key, record = make_key(requests_per_minute=12)
    settings = redis_settings(redis_url)

    async def test() -> None:
        started = time.monotonic()
        async with two_houses(texts, settings, record) as houses:
            counts = await statuses(houses, key, 40)
        refilled = 12 * (time.monotonic() - started) / 60
        assert 12 <= counts[200] <= 12 + refilled
        assert counts[200] + counts[429] == 40

    asyncio.run(test())


def test_what_runs_at_one_router_counts_at_the_other(texts: Texts, redis_url: str) -> None:
    key, record = make_key(max_concurrency=1)
    settings = redis_settings(redis_url)

    async def test() -> None:
        async with two_houses(texts, settings, record) as (one, other):
            one.p.gate.clear()
            running = asyncio.create_task(ask(one, key))
            await one.p.until(lambda w: len(w.attempts) == 1)
            assert (await ask(other, key)).status_code == 429
            one.p.gate.set()
            assert (await running).status_code == 200
            async with asyncio.timeout(DEADLINE_S):
                while (await ask(other, key)).status_code != 200:
                    continue

    asyncio.run(test())


def test_usage_of_both_adds_up(texts: Texts, redis_url: str) -> None:
    key, record = make_key()
    settings = redis_settings(redis_url)

    async def test() -> None:
        async with two_houses(texts, settings, record) as houses:
            assert await statuses(houses, key, 6) == {200: 6}
        async with open_store(settings) as store:
            (row,) = await store.usage(time.strftime("%Y-%m-%d", time.gmtime()))
        assert (row.requests, row.prompt_tokens, row.output_tokens) == (6, 240, 12)

    asyncio.run(test())


@pytest.mark.parametrize("how", ["killed", "paused"])
def test_without_the_store_each_router_grants_its_share_and_nobody_waits_long(
    texts: Texts, server: redis_server.RedisServer, how: str
) -> None:
    key, record = make_key(requests_per_minute=40)
    settings = redis_settings(server.url, store_timeout_s=SHORT_S, refresh_s=SHORT_S)

    async def test() -> None:
        async with two_houses(texts, settings, record) as houses:
            # So that both routers know the key, and have something granted before.
            assert await statuses(houses, key, 4) == {200: 4}
            if how == "killed":
                server.kill()
            else:
                server.pause()
            started = time.monotonic()
            counts = await statuses(houses, key, 80)
            # 18 of each share are left, and a little refills.
            most = 36 + 40 * (time.monotonic() - started + SHORT_S) / 60 + 2
            assert 30 <= counts[200] <= most and counts[200] + counts[429] == 80
            assert all(limits(h).is_away for h in houses)
            assert (await ask(houses[0], make_key()[0])).status_code == 503, "nobody can say"

            if how == "killed":
                server.revive()
                await put_keys(settings, [record])
            else:
                server.resume()
            async with asyncio.timeout(DEADLINE_S):
                while any(limits(h).is_away for h in houses):
                    await asyncio.sleep(0.01)
            back = await statuses(houses, key, 60)
            waited_s = time.monotonic() - started
            assert back[200] <= 6 + 40 * waited_s / 60, "a new bucket is no fuller than the old"
            assert back[200] + back[429] == 60
        async with open_store(settings) as store:
            (row,) = await store.usage(time.strftime("%Y-%m-%d", time.gmtime()))
        # What was used while it was away is not lost; what a killed Redis knew before is.
        assert counts[200] + back[200] <= row.requests <= counts[200] + back[200] + 4
        assert how == "killed" or row.requests == counts[200] + back[200] + 4

    asyncio.run(test())
