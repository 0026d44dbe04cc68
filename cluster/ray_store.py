"""The memory store, shared through an actor.

The actor is a plain `MemoryStore`; Ray restarts it if it dies, empty. Members notice on their next
heartbeat (False) and announce themselves again, so the truth is back within a heartbeat.
"""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

import ray

from cluster.ray_calls import ProcessLostError, call
from core.config import StateConfig
from state.memory import MemoryStore
from state.redis_store import RedisStore
from state.store import Member, Store, StoreUnavailableError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoreRef:
    """How any process of the cluster reaches the store; may be sent to actors."""

    config: StateConfig
    actor: Any | None
    """The handle of a MemoryStore actor, for the memory backend."""


def create_store(config: StateConfig) -> StoreRef:
    """Starts the actor that the memory backend needs; nothing for Redis."""
    if config.backend == "redis":
        return StoreRef(config, None)
    actor = ray.remote(MemoryStore).options(num_cpus=0, max_restarts=-1).remote()
    return StoreRef(config, actor)


def open_store(ref: StoreRef) -> Store:
    """This process's own client."""
    config = ref.config
    if ref.actor is None:
        return RedisStore(config.redis_url, config.namespace, config.timeout_s)
    return RayStore(ref.actor, config.timeout_s)


def discard_store(ref: StoreRef) -> None:
    """Ends the actor and forgets what it held."""
    if ref.actor is not None:
        ray.kill(ref.actor)


class RayStore:
    """A `Store` whose calls go to a MemoryStore actor; each answers or fails within `timeout_s`."""

    def __init__(self, actor: Any, timeout_s: float) -> None:
        self._actor = actor
        self._timeout_s = timeout_s

    async def announce(self, member: Member, *, ttl_s: float) -> None:
        await self._bounded(self._actor.announce.remote(member, ttl_s=ttl_s))

    async def heartbeat(self, worker_id: str, epoch: str, *, ttl_s: float) -> bool:
        reply: Awaitable[bool] = self._actor.heartbeat.remote(worker_id, epoch, ttl_s=ttl_s)
        return await self._bounded(reply)

    async def withdraw(self, worker_id: str, epoch: str) -> None:
        await self._bounded(self._actor.withdraw.remote(worker_id, epoch))

    async def members(self) -> tuple[Member, ...]:
        reply: Awaitable[tuple[Member, ...]] = self._actor.members.remote()
        return await self._bounded(reply)

    async def put(self, key: str, value: bytes, *, ttl_s: float | None = None) -> None:
        await self._bounded(self._actor.put.remote(key, value, ttl_s=ttl_s))

    async def get(self, key: str) -> bytes | None:
        reply: Awaitable[bytes | None] = self._actor.get.remote(key)
        return await self._bounded(reply)

    async def delete(self, key: str) -> None:
        await self._bounded(self._actor.delete.remote(key))

    async def close(self) -> None:
        """The actor belongs to who created it."""

    async def _bounded(self, reply: Awaitable[T]) -> T:
        try:
            return await call(reply, timeout_s=self._timeout_s)
        except ProcessLostError as error:
            raise StoreUnavailableError(f"store actor: {error.message}") from None
