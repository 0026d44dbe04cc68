"""The store on a Redis server, shared with processes that were started by hand.

    {ns}:members   hash  worker id -> JSON of Member
    {ns}:expiry    zset  worker id -> the server's time in ms at which it vanishes
    {ns}:value:K   string

Expiry is judged by the server's clock alone, so members need no clocks in step. Each operation on
membership is one script, hence atomic: a late call of a former epoch cannot slip in between.
The braces keep all keys in one slot of a Redis Cluster.
"""

from __future__ import annotations

import dataclasses
import json
from typing import TypeVar

from core.request import Phase
from state.redis_link import RedisLink, milliseconds
from state.store import Member

T = TypeVar("T")

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
        self._link = RedisLink(url, namespace, timeout_s)
        self._redis, self._prefix = self._link.client, self._link.prefix
        self._keys = (f"{self._prefix}:members", f"{self._prefix}:expiry")
        self._announce = self._redis.register_script(_ANNOUNCE)
        self._heartbeat = self._redis.register_script(_HEARTBEAT)
        self._withdraw = self._redis.register_script(_WITHDRAW)
        self._members = self._redis.register_script(_MEMBERS)

    async def announce(self, member: Member, *, ttl_s: float) -> None:
        args = (member.worker_id, _encode(member), milliseconds(ttl_s))
        await self._link.within(self._announce(keys=self._keys, args=args))

    async def heartbeat(self, worker_id: str, epoch: str, *, ttl_s: float) -> bool:
        args = (worker_id, epoch, milliseconds(ttl_s))
        return bool(await self._link.within(self._heartbeat(keys=self._keys, args=args)))

    async def withdraw(self, worker_id: str, epoch: str) -> None:
        await self._link.within(self._withdraw(keys=self._keys, args=(worker_id, epoch)))

    async def members(self) -> tuple[Member, ...]:
        found = await self._link.within(self._members(keys=self._keys))
        return tuple(sorted((_decode(raw) for raw in found), key=lambda m: m.worker_id))

    async def put(self, key: str, value: bytes, *, ttl_s: float | None = None) -> None:
        px = None if ttl_s is None else milliseconds(ttl_s)
        await self._link.within(self._redis.set(self._value_key(key), value, px=px))

    async def get(self, key: str) -> bytes | None:
        value = await self._link.within(self._redis.get(self._value_key(key)))
        assert value is None or isinstance(value, bytes)
        return value

    async def delete(self, key: str) -> None:
        await self._link.within(self._redis.delete(self._value_key(key)))

    async def close(self) -> None:
        await self._link.close()

    def _value_key(self, key: str) -> str:
        return f"{self._prefix}:value:{key}"


def _encode(member: Member) -> str:
    return json.dumps(dataclasses.asdict(member))


def _decode(raw: bytes) -> Member:
    """Ignores fields that a newer release added."""
    fields = json.loads(raw)
    known = {f.name: fields[f.name] for f in dataclasses.fields(Member) if f.name in fields}
    return Member(**{**known, "role": Phase(known["role"])})
