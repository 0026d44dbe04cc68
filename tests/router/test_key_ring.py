"""What a router knows of keys, and for how long, with the store there and away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fakes_tenants import make_key

from core.errors import AuthenticationError, UnavailableError
from router.tenants.key_ring import KeyRing
from state.file_tenants import FileTenants
from state.store import StoreUnavailableError
from state.tenants import KeyRecord

REFRESH_S = 10.0


class Hands:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.time = 100.0

    def now(self) -> float:
        return self.time


class WatchedStore(FileTenants):
    """Counts look-ups, and can be away."""

    num_asked = 0
    is_away = False
    answers: asyncio.Event

    async def get_key(self, key_id: str) -> KeyRecord | None:
        self.num_asked += 1
        await self.answers.wait()
        if self.is_away:
            raise StoreUnavailableError("away")
        return await super().get_key(key_id)


Check = Callable[[KeyRing, WatchedStore, Hands], Awaitable[None]]


def with_ring(tmp_path: Path, check: Check) -> None:
    async def run() -> None:
        store, hands = WatchedStore(tmp_path / "tenants.db", 5.0), Hands()
        store.answers = asyncio.Event()
        store.answers.set()
        await check(KeyRing(store, hands, lambda: 1000.0, refresh_s=REFRESH_S), store, hands)
        await store.close()

    asyncio.run(run())


def test_a_key_is_looked_up_once_for_all_who_ask_at_once(tmp_path: Path) -> None:
    async def check(ring: KeyRing, store: WatchedStore, hands: Hands) -> None:
        key, record = make_key()
        await store.put_key(record)
        store.answers.clear()
        asking = [asyncio.create_task(ring.check(key)) for _ in range(5)]
        await asyncio.sleep(0)
        asking[0].cancel()
        store.answers.set()
        assert await asyncio.gather(*asking[1:]) == [record] * 4
        assert store.num_asked == 1
        hands.time += REFRESH_S - 1
        await ring.check(key)
        assert store.num_asked == 1
        hands.time += 1
        await ring.check(key)
        assert store.num_asked == 2

    with_ring(tmp_path, check)


def test_an_unknown_id_is_remembered_too(tmp_path: Path) -> None:
    async def check(ring: KeyRing, store: WatchedStore, hands: Hands) -> None:
        key, _ = make_key()
        for _ in range(3):
            with pytest.raises(AuthenticationError):
                await ring.check(key)
        with pytest.raises(AuthenticationError):
            await ring.check("sk-of-somebody-else")
        assert store.num_asked == 1

    with_ring(tmp_path, check)


def test_an_expired_key_is_refused_though_it_is_known(tmp_path: Path) -> None:
    async def check(ring: KeyRing, store: WatchedStore, hands: Hands) -> None:
        key, record = make_key()
        await store.put_key(replace(record, expires_at=1000.0))
        with pytest.raises(AuthenticationError):
            await ring.check(key)
        ring.forget(record.key_id)
        await store.put_key(replace(record, expires_at=1000.5))
        assert (await ring.check(key)).key_id == record.key_id

    with_ring(tmp_path, check)


def test_with_the_store_away_the_known_go_on_and_nobody_waits(tmp_path: Path) -> None:
    async def check(ring: KeyRing, store: WatchedStore, hands: Hands) -> None:
        (known, record), (unknown, other) = make_key(), make_key()
        for each in (record, other):
            await store.put_key(each)
        await ring.check(known)
        store.is_away = True
        hands.time += REFRESH_S
        assert await ring.check(known) == record, "asked in vain"
        with pytest.raises(UnavailableError) as refused:
            await ring.check(unknown)
        assert refused.value.reason == "store"
        asked = store.num_asked
        hands.time += REFRESH_S
        store.answers.clear()
        assert await ring.check(known) == record, "while it is tried again"
        await asyncio.sleep(0)
        assert store.num_asked == asked + 1
        store.is_away = False
        store.answers.set()
        hands.time += REFRESH_S
        assert await ring.check(unknown) == other

    with_ring(tmp_path, check)
