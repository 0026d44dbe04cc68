"""A worker that is ready before its store is there."""

from __future__ import annotations

import asyncio

import pytest

from cluster.faulty_store import FaultyStore
from cluster.worker_heartbeat import Heartbeat
from core.faults import make_faults
from core.request import Phase
from state.memory import MemoryStore
from state.store import Member, StoreUnavailableError

MEMBER = Member("decode-0", "e1", Phase.DECODE, "127.0.0.1:1", "m", "key")


class StillClock:
    """No membership expires: a slow machine is not what is tested."""

    def now(self) -> float:
        return 0.0


def store_with(spec: str) -> tuple[FaultyStore, MemoryStore]:
    faults = make_faults(spec, seed=0, worker_id=MEMBER.worker_id)
    assert faults is not None
    inner = MemoryStore(StillClock())
    return FaultyStore(inner, faults), inner


def test_it_waits_for_the_store_and_is_a_member_then() -> None:
    store, inner = store_with("store:fail:times=3")

    async def test() -> None:
        heartbeat = Heartbeat(store, period_s=0.01)
        await heartbeat.start(MEMBER, patience_s=60)
        assert await inner.members() == (MEMBER,)
        await heartbeat.stop()
        assert await inner.members() == ()

    asyncio.run(test())


def test_it_gives_up_when_there_was_no_store_for_long() -> None:
    store, _ = store_with("store:fail")

    async def test() -> None:
        heartbeat = Heartbeat(store, period_s=0.01)
        with pytest.raises(StoreUnavailableError):
            await heartbeat.start(MEMBER, patience_s=0.05)
        await heartbeat.stop()

    asyncio.run(test())
