"""One contract, three stores: in memory, on Redis, and behind a Ray actor."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

import pytest

from core.config import StateConfig
from core.request import Phase
from state.memory import MemoryStore
from state.redis_store import RedisStore
from state.store import Member, Store

OpenStore: TypeAlias = Callable[[], AbstractAsyncContextManager[Store]]

TTL_S = 60.0
SHORT_S = 0.02
BRIEF_S = 2.0
"""Time enough for a call, on a machine that is busy."""
DEADLINE_S = 20.0


@contextlib.asynccontextmanager
async def memory() -> AsyncIterator[Store]:
    yield MemoryStore()


@pytest.fixture(params=["memory", "redis", "ray"])
def open_store(request: pytest.FixtureRequest) -> OpenStore:
    """Opens a new, empty store of each kind."""
    if request.param == "memory":
        return memory
    if request.param == "redis":
        url: str = request.getfixturevalue("redis_url")
        return lambda: _redis(url, uuid.uuid4().hex)
    request.getfixturevalue("ray_session")
    return _ray


@contextlib.asynccontextmanager
async def _redis(url: str, namespace: str) -> AsyncIterator[Store]:
    store = RedisStore(url, namespace, DEADLINE_S)
    try:
        yield store
    finally:
        await store.close()


@contextlib.asynccontextmanager
async def _ray() -> AsyncIterator[Store]:
    from cluster.ray_store import create_store, discard_store
    from cluster.ray_store import open_store as open_ray_store

    ref = create_store(StateConfig(timeout_s=DEADLINE_S))
    try:
        yield open_ray_store(ref)
    finally:
        discard_store(ref)


def member(worker_id: str = "prefill-0", epoch: str = "e1") -> Member:
    return Member(worker_id, epoch, Phase.PREFILL, "127.0.0.1:1", "m", "key", 2, draining=False)


def run(open_store: OpenStore, check: Callable[[Store], Awaitable[None]]) -> None:
    async def body() -> None:
        async with open_store() as store:
            await check(store)

    asyncio.run(body())


async def until_gone(look: Callable[[], Awaitable[object]]) -> None:
    """Looks until there is nothing to see: expiry is the server's, so no clock can be moved."""
    async with asyncio.timeout(DEADLINE_S):
        while await look():
            await asyncio.sleep(0)


def test_an_announced_member_is_seen_whole_and_in_order(open_store: OpenStore) -> None:
    async def check(store: Store) -> None:
        second = dataclasses.replace(member("b", "e2"), role=Phase.DECODE, draining=True)
        await store.announce(second, ttl_s=TTL_S)
        await store.announce(member("a"), ttl_s=TTL_S)
        assert await store.members() == (member("a"), second)

    run(open_store, check)


def test_announcing_again_replaces_a_former_epoch(open_store: OpenStore) -> None:
    async def check(store: Store) -> None:
        await store.announce(member(epoch="old"), ttl_s=TTL_S)
        await store.announce(member(epoch="new"), ttl_s=TTL_S)
        assert await store.members() == (member(epoch="new"),)

    run(open_store, check)


def test_a_member_that_stops_refreshing_vanishes(open_store: OpenStore) -> None:
    async def check(store: Store) -> None:
        await store.announce(member(), ttl_s=SHORT_S)
        await until_gone(store.members)
        assert not await store.heartbeat("prefill-0", "e1", ttl_s=TTL_S)
        assert await store.members() == ()

    run(open_store, check)


def test_a_heartbeat_prolongs_and_is_acknowledged(open_store: OpenStore) -> None:
    async def check(store: Store) -> None:
        await store.announce(member("stays"), ttl_s=BRIEF_S)
        assert await store.heartbeat("stays", "e1", ttl_s=TTL_S)
        await store.announce(member("goes"), ttl_s=BRIEF_S)
        await until_gone(lambda: _is_present(store, "goes"))
        assert await store.members() == (member("stays"),)

    run(open_store, check)


async def _is_present(store: Store, worker_id: str) -> bool:
    return any(m.worker_id == worker_id for m in await store.members())


def test_a_late_heartbeat_of_a_former_epoch_changes_nothing(open_store: OpenStore) -> None:
    async def check(store: Store) -> None:
        await store.announce(member(epoch="old"), ttl_s=TTL_S)
        await store.announce(member(epoch="new"), ttl_s=1.0)
        assert not await store.heartbeat("prefill-0", "old", ttl_s=TTL_S)
        await until_gone(store.members)

    run(open_store, check)


def test_a_late_withdrawal_of_a_former_epoch_changes_nothing(open_store: OpenStore) -> None:
    async def check(store: Store) -> None:
        await store.announce(member(epoch="new"), ttl_s=TTL_S)
        await store.withdraw("prefill-0", "old")
        assert await store.members() == (member(epoch="new"),)

    run(open_store, check)


def test_withdrawing_is_idempotent_and_ends_heartbeats(open_store: OpenStore) -> None:
    async def check(store: Store) -> None:
        await store.announce(member(), ttl_s=TTL_S)
        await store.withdraw("prefill-0", "e1")
        await store.withdraw("prefill-0", "e1")
        assert await store.members() == ()
        assert not await store.heartbeat("prefill-0", "e1", ttl_s=TTL_S)

    run(open_store, check)


def test_a_heartbeat_of_a_stranger_is_refused(open_store: OpenStore) -> None:
    async def check(store: Store) -> None:
        assert not await store.heartbeat("nobody", "e1", ttl_s=TTL_S)

    run(open_store, check)


def test_values_are_set_replaced_and_deleted(open_store: OpenStore) -> None:
    async def check(store: Store) -> None:
        assert await store.get("k") is None
        await store.put("k", b"\x00\xff one")
        await store.put("k", b"two")
        assert await store.get("k") == b"two"
        await store.delete("k")
        await store.delete("k")
        assert await store.get("k") is None

    run(open_store, check)


def test_a_value_expires_and_setting_it_again_clears_the_expiry(open_store: OpenStore) -> None:
    async def check(store: Store) -> None:
        await store.put("short", b"x", ttl_s=SHORT_S)
        await store.put("kept", b"y", ttl_s=SHORT_S)
        await store.put("kept", b"y")
        await until_gone(lambda: store.get("short"))
        assert await store.get("kept") == b"y"

    run(open_store, check)


def test_closing_twice_is_fine(open_store: OpenStore) -> None:
    async def check(store: Store) -> None:
        await store.get("k")
        await store.close()
        await store.close()

    run(open_store, check)
