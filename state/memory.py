"""The embedded store: plain dictionaries in one process, expired lazily by a clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from core.clock import Clock, MonotonicClock
from state.store import Member

T = TypeVar("T")


@dataclass(slots=True)
class _Expiring(Generic[T]):
    value: T
    expires_at: float | None

    def alive(self, now: float) -> bool:
        return self.expires_at is None or now < self.expires_at


class MemoryStore:
    """A `Store` that lives in this process. `cluster` wraps it in an actor to share it."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._members: dict[str, _Expiring[Member]] = {}
        self._values: dict[str, _Expiring[bytes]] = {}

    async def announce(self, member: Member, *, ttl_s: float) -> None:
        self._members[member.worker_id] = _Expiring(member, self._clock.now() + ttl_s)

    async def heartbeat(self, worker_id: str, epoch: str, *, ttl_s: float) -> bool:
        entry = self._member(worker_id)
        if entry is None or entry.value.epoch != epoch:
            return False
        entry.expires_at = self._clock.now() + ttl_s
        return True

    async def withdraw(self, worker_id: str, epoch: str) -> None:
        entry = self._members.get(worker_id)
        if entry is not None and entry.value.epoch == epoch:
            del self._members[worker_id]

    async def members(self) -> tuple[Member, ...]:
        now = self._clock.now()
        self._members = {k: e for k, e in self._members.items() if e.alive(now)}
        return tuple(self._members[k].value for k in sorted(self._members))

    async def put(self, key: str, value: bytes, *, ttl_s: float | None = None) -> None:
        expires_at = None if ttl_s is None else self._clock.now() + ttl_s
        self._values[key] = _Expiring(value, expires_at)

    async def get(self, key: str) -> bytes | None:
        entry = self._values.get(key)
        if entry is None or not entry.alive(self._clock.now()):
            self._values.pop(key, None)
            return None
        return entry.value

    async def delete(self, key: str) -> None:
        self._values.pop(key, None)

    async def close(self) -> None:
        return None

    def _member(self, worker_id: str) -> _Expiring[Member] | None:
        entry = self._members.get(worker_id)
        return entry if entry is not None and entry.alive(self._clock.now()) else None
