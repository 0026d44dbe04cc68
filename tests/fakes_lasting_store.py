"""A store for houses in one process, where a machine that is busy must not look like a dead one."""

from __future__ import annotations

from state.store import Member, Store

_LASTING_S = 3600.0


class LastingStore:
    """Members stay until they withdraw, however late their heartbeats are; all else is as it is.

    Workers and routers of a house share a thread: when that comes late, a membership of three
    heartbeats may be over before its worker gets to prolong it.
    """

    def __init__(self, inner: Store) -> None:
        self._inner = inner

    async def announce(self, member: Member, *, ttl_s: float) -> None:
        await self._inner.announce(member, ttl_s=_LASTING_S)

    async def heartbeat(self, worker_id: str, epoch: str, *, ttl_s: float) -> bool:
        return await self._inner.heartbeat(worker_id, epoch, ttl_s=_LASTING_S)

    async def withdraw(self, worker_id: str, epoch: str) -> None:
        await self._inner.withdraw(worker_id, epoch)

    async def members(self) -> tuple[Member, ...]:
        return await self._inner.members()

    async def put(self, key: str, value: bytes, *, ttl_s: float | None = None) -> None:
        await self._inner.put(key, value, ttl_s=ttl_s)

    async def get(self, key: str) -> bytes | None:
        return await self._inner.get(key)

    async def delete(self, key: str) -> None:
        await self._inner.delete(key)

    async def close(self) -> None:
        await self._inner.close()
