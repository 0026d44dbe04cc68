"""The contract of shared cluster state: membership with heartbeats, and small expiring values.

A member is announced with a TTL of three heartbeats and vanishes when it stops refreshing. The
worker's `epoch` names one incarnation: a late heartbeat or deregistration of a former incarnation
must not touch the present one. Every call has a deadline; past it: `StoreUnavailableError`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from core.errors import TandemError
from core.request import Phase


class StoreUnavailableError(TandemError):
    """The store did not answer in time; callers go on with the last known state."""

    code = "store_unavailable"
    retryable = True


@dataclass(frozen=True, slots=True)
class Member:
    """One worker as others see it."""

    worker_id: str
    epoch: str
    role: Phase
    address: str
    """host:port of its gRPC server."""
    model: str
    compat_key: str
    tensor_parallel_size: int = 1
    draining: bool = False


class Store(Protocol):
    """Shared state: `state.memory`, `state.redis_store`, and a proxy to a Ray actor in cluster/."""

    async def announce(self, member: Member, *, ttl_s: float) -> None:
        """Adds the member, or refreshes the same epoch, or replaces another epoch of its id."""
        ...

    async def heartbeat(self, worker_id: str, epoch: str, *, ttl_s: float) -> bool:
        """Refreshes; False if that incarnation is not (or no longer) a member: announce again."""
        ...

    async def withdraw(self, worker_id: str, epoch: str) -> None:
        """Removes the member if it is still that incarnation. Idempotent."""
        ...

    async def members(self) -> tuple[Member, ...]:
        """All present members, ordered by worker id."""
        ...

    async def put(self, key: str, value: bytes, *, ttl_s: float | None = None) -> None:
        """Sets a value, expiring after `ttl_s` if given."""
        ...

    async def get(self, key: str) -> bytes | None:
        """The value, or None if absent or expired."""
        ...

    async def delete(self, key: str) -> None:
        """Removes a value. Idempotent."""
        ...

    async def close(self) -> None:
        """Ends connections. Idempotent."""
        ...
