"""What only Redis can do to us: be away, be paused, come back, be shared."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Callable, Iterator

import pytest
import redis_server

from core.errors import ConfigError
from core.request import Phase
from state.redis_store import RedisStore
from state.store import Member, StoreUnavailableError

TIMEOUT_S = 0.3
PATIENT_S = 2.0
"""For calls that must succeed: a busy machine answers late."""
LONG_S = 20.0
MEMBER = Member("decode-0", "e1", Phase.DECODE, "127.0.0.1:1", "m", "key")

CALLS: dict[str, Callable[[RedisStore], Awaitable[object]]] = {
    "announce": lambda store: store.announce(MEMBER, ttl_s=9.0),
    "heartbeat": lambda store: store.heartbeat("decode-0", "e1", ttl_s=9.0),
    "withdraw": lambda store: store.withdraw("decode-0", "e1"),
    "members": lambda store: store.members(),
    "put": lambda store: store.put("k", b"v"),
    "get": lambda store: store.get("k"),
    "delete": lambda store: store.delete("k"),
}


@pytest.fixture(scope="module")
def server(redis_binary: redis_server.Binary) -> Iterator[redis_server.RedisServer]:
    """A server of our own, since we pause it."""
    with redis_server.running(redis_binary) as server:
        yield server


async def until_connected(store: RedisStore) -> None:
    """Until it has had an answer, which a busy machine may not give in so short a time."""
    async with asyncio.timeout(LONG_S):
        while True:
            with contextlib.suppress(StoreUnavailableError):
                return await store.put("k", b"v")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("connected", [True, False], ids=["connected", "new"])
def test_a_paused_server_fails_the_call_by_its_deadline(
    server: redis_server.RedisServer,
    call: Callable[[RedisStore], Awaitable[object]],
    connected: bool,
) -> None:
    async def check() -> None:
        store = RedisStore(server.url, "t", TIMEOUT_S)
        if connected:
            await until_connected(store)
        server.pause()
        try:
            # The outer deadline is what would be a hang: without ours, this takes minutes.
            async with asyncio.timeout(20 * TIMEOUT_S):
                with pytest.raises(StoreUnavailableError, match="no answer|Timeout"):
                    await call(store)
        finally:
            server.resume()
        await store.close()

    asyncio.run(check())


def test_a_store_works_again_after_a_pause(server: redis_server.RedisServer) -> None:
    async def check() -> None:
        store = RedisStore(server.url, "t", PATIENT_S)
        await store.put("k", b"before")
        server.pause()
        calls = [store.get("k") for _ in range(20)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(isinstance(result, StoreUnavailableError) for result in results)
        server.resume()
        assert await store.get("k") == b"before"
        await store.close()

    asyncio.run(check())


def test_many_calls_at_a_paused_server_share_one_deadline(
    server: redis_server.RedisServer,
) -> None:
    async def check() -> None:
        store = RedisStore(server.url, "t", 3 * TIMEOUT_S)
        server.pause()
        try:
            # One after another, 64 calls on 8 connections would take 64 / 8 deadlines and more.
            async with asyncio.timeout(7 * 3 * TIMEOUT_S):
                calls = [store.members() for _ in range(64)]
                results = await asyncio.gather(*calls, return_exceptions=True)
        finally:
            server.resume()
        assert all(isinstance(result, StoreUnavailableError) for result in results)
        await store.close()

    asyncio.run(check())


def test_a_server_that_is_gone_is_unavailable(redis_binary: redis_server.Binary) -> None:
    async def check(server: redis_server.RedisServer) -> None:
        store = RedisStore(server.url, "t", LONG_S)
        await store.put("k", b"v")
        server.kill()
        with pytest.raises(StoreUnavailableError, match="Redis at redis://"):
            await store.get("k")
        await store.close()

    with redis_server.running(redis_binary) as server:
        asyncio.run(check(server))


def test_namespaces_do_not_see_each_other(redis_url: str) -> None:
    async def check() -> None:
        one, two = (RedisStore(redis_url, uuid.uuid4().hex, 20.0) for _ in range(2))
        await one.announce(MEMBER, ttl_s=60.0)
        await one.put("k", b"v")
        assert await two.members() == ()
        assert await two.get("k") is None
        await one.close()
        await two.close()

    asyncio.run(check())


def test_a_racing_withdrawal_never_removes_the_new_epoch(redis_url: str) -> None:
    async def check() -> None:
        old, new = (RedisStore(redis_url, "race", 20.0) for _ in range(2))
        for turn in range(50):
            before = Member("w", f"old-{turn}", Phase.DECODE, "a:1", "m", "key")
            after = Member("w", f"new-{turn}", Phase.DECODE, "a:1", "m", "key")
            await old.announce(before, ttl_s=60.0)
            await asyncio.gather(
                old.withdraw("w", before.epoch),
                new.announce(after, ttl_s=60.0),
                old.heartbeat("w", before.epoch, ttl_s=60.0),
            )
            assert await new.members() == (after,)
        await old.close()
        await new.close()

    asyncio.run(check())


def test_a_malformed_url_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match=r"state\.redis_url = 'nonsense'"):
        RedisStore("nonsense", "t", 1.0)
