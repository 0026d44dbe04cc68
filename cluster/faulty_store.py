"""A store that is late or does not answer on purpose: `core.faults` at store, around any store."""

from __future__ import annotations

import asyncio

from core.faults import FaultPoint, Faults
from state.store import Member, Store, StoreUnavailableError


class FaultyStore:
    """Each call but `close` is an occurrence; a failed one does not reach the store."""

    def __init__(self, inner: Store, faults: Faults) -> None:
        self._inner = inner
        self._faults = faults

    async def announce(self, member: Member, *, ttl_s: float) -> None:
        await self._happens()
        await self._inner.announce(member, ttl_s=ttl_s)

    async def heartbeat(self, worker_id: str, epoch: str, *, ttl_s: float) -> bool:
        await self._happens()
        return await self._inner.heartbeat(worker_id, epoch, ttl_s=ttl_s)

    async def withdraw(self, worker_id: str, epoch: str) -> None:
        await self._happens()
        await self._inner.withdraw(worker_id, epoch)

    async def members(self) -> tuple[Member, ...]:
        await self._happens()
        return await self._inner.members()

    async def put(self, key: str, value: bytes, *, ttl_s: float | None = None) -> None:
        await self._happens()
        await self._inner.put(key, value, ttl_s=ttl_s)

    async def get(self, key: str) -> bytes | None:
        await self._happens()
        return await self._inner.get(key)

    async def delete(self, key: str) -> None:
        await self._happens()
        await self._inner.delete(key)

    async def close(self) -> None:
        await self._inner.close()

    async def _happens(self) -> None:
        fault = self._faults.take(FaultPoint.STORE)
        if fault is not None:
            await asyncio.sleep(fault.delay_s)
            if fault.action is not None:
                raise StoreUnavailableError("a fault at store")
