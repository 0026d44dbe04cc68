"""The store on a Redis server, shared with processes that were started by hand.

    {ns}:members   hash  worker id -> JSON of Member
    {ns}:expiry    zset  worker id -> the server's time in ms at which it vanishes
    {ns}:value:K   string

Expiry is judged by the server's clock alone, so members need no clocks in step. Each operation on
membership is one script, hence atomic: a late call of a former epoch cannot slip in between.
The braces keep all keys in one slot of a Redis Cluster.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Awaitable
from typing import TypeVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from core.errors import ConfigError
from core.request import Phase
from state.store import Member, StoreUnavailableError

T = TypeVar("T")

# Enough for a process's heartbeats and look-ups side by side; further calls wait their turn.
MAX_CONNECTIONS = 8

_NOW = "local t = redis.call('TIME'); local now = t[1] * 1000 + math.floor(t[2] / 1000)\n"

_SAME_EPOCH = """
local raw = redis.call('HGET', KEYS[1], ARGV[1])
local same = raw and cjson.decode(raw).epoch == ARGV[2]
"""

_ANNOUNCE = (
    _NOW
    + """
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])
return 1
"""
)

_HEARTBEAT = (
    _NOW
    + _SAME_EPOCH
    + """
local expires_at = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not same or not expires_at or tonumber(expires_at) <= now then return 0 end
redis.call('ZADD', KEYS[2], now + ARGV[3], ARGV[1])
return 1
"""
)

_WITHDRAW = (
    _SAME_EPOCH
    + """
if not same then return 0 end
redis.call('HDEL', KEYS[1], ARGV[1])
redis.call('ZREM', KEYS[2], ARGV[1])
return 1
"""
)

_MEMBERS = (
    _NOW
    + """
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now)) do
  redis.call('HDEL', KEYS[1], gone)
  redis.call('ZREM', KEYS[2], gone)
end
return redis.call('HVALS', KEYS[1])
"""
)


class RedisStore:
    """A `Store` on the server at `url`; every call fails within `timeout_s` if it gets no answer.

    Raises ConfigError for a malformed URL, StoreUnavailableError for everything the server or the
    network does. Connections are made lazily and belong to the event loop that first uses them.
    """

    def __init__(self, url: str, namespace: str, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._url = url
        self._prefix = "{" + namespace + "}"
        self._keys = (f"{self._prefix}:members", f"{self._prefix}:expiry")
        self._redis = Redis.from_pool(connection_pool(url, timeout_s))
        self._announce = self._redis.register_script(_ANNOUNCE)
        self._heartbeat = self._redis.register_script(_HEARTBEAT)
        self._withdraw = self._redis.register_script(_WITHDRAW)
        self._members = self._redis.register_script(_MEMBERS)

    async def announce(self, member: Member, *, ttl_s: float) -> None:
        args = (member.worker_id, _encode(member), _milliseconds(ttl_s))
        await self._bounded(self._announce(keys=self._keys, args=args))

    async def heartbeat(self, worker_id: str, epoch: str, *, ttl_s: float) -> bool:
        args = (worker_id, epoch, _milliseconds(ttl_s))
        return bool(await self._bounded(self._heartbeat(keys=self._keys, args=args)))

    async def withdraw(self, worker_id: str, epoch: str) -> None:
        await self._bounded(self._withdraw(keys=self._keys, args=(worker_id, epoch)))

    async def members(self) -> tuple[Member, ...]:
        found = await self._bounded(self._members(keys=self._keys))
        return tuple(sorted((_decode(raw) for raw in found), key=lambda m: m.worker_id))

    async def put(self, key: str, value: bytes, *, ttl_s: float | None = None) -> None:
        px = None if ttl_s is None else _milliseconds(ttl_s)
        await self._bounded(self._redis.set(self._value_key(key), value, px=px))

    async def get(self, key: str) -> bytes | None:
        value = await self._bounded(self._redis.get(self._value_key(key)))
        assert value is None or isinstance(value, bytes)
        return value

    async def delete(self, key: str) -> None:
        await self._bounded(self._redis.delete(self._value_key(key)))

    async def close(self) -> None:
        await self._bounded(self._redis.aclose(close_connection_pool=True))

    def _value_key(self, key: str) -> str:
        return f"{self._prefix}:value:{key}"

    async def _bounded(self, call: Awaitable[T]) -> T:
        """One deadline over all of it: a free connection, connecting, and the answer."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await call
        except TimeoutError:
            reason = f"no answer within {self._timeout_s:g} s"
        except (RedisError, OSError) as error:
            reason = str(error) or type(error).__name__
        raise StoreUnavailableError(f"Redis at {self._url}: {reason}")


def connection_pool(url: str, timeout_s: float) -> BlockingConnectionPool:
    """Connections whose every wait ends within `timeout_s`. Raises ConfigError for the URL."""
    try:
        return BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            health_check_interval=max(1, round(timeout_s)),
            # The caller decides whether to try again: retries in here would outlive the deadline.
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        raise ConfigError(f"state.redis_url = {url!r}: {error}") from None


def _milliseconds(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def _encode(member: Member) -> str:
    return json.dumps(dataclasses.asdict(member))


def _decode(raw: bytes) -> Member:
    """Ignores fields that a newer release added."""
    fields = json.loads(raw)
    known = {f.name: fields[f.name] for f in dataclasses.fields(Member) if f.name in fields}
    return Member(**{**known, "role": Phase(known["role"])})
