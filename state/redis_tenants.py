"""Tenants on a Redis server: keys, usage, and limits that hold over all routers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Sequence
from typing import TypeVar, cast

from state.redis_link import RedisLink
from state.tenant_scripts import ACQUIRE, BEAT, SETTLE
from state.tenants import (
    COUNTERS,
    Denial,
    KeyRecord,
    Level,
    LimitDemand,
    LimitVerdict,
    Settlement,
    UsageRow,
    key_from_json,
)

T = TypeVar("T")

NO_LIMIT = -1


class RedisTenants:
    """A `TenantStore` and `SharedLimits`; every call fails within `timeout_s` without an answer.

    Raises ConfigError for a malformed URL. Connections belong to the event loop that first uses
    them.
    """

    def __init__(self, url: str, namespace: str, timeout_s: float) -> None:
        self._link = RedisLink(url, namespace, timeout_s)
        self._redis, self._prefix = self._link.client, self._link.prefix
        self._acquire = self._redis.register_script(ACQUIRE)
        self._settle = self._redis.register_script(SETTLE)
        self._beat = self._redis.register_script(BEAT)

    async def put_key(self, record: KeyRecord) -> None:
        text = record.to_json()
        await self._link.within(self._redis.hset(f"{self._prefix}:keys", record.key_id, text))

    async def get_key(self, key_id: str) -> KeyRecord | None:
        entry = cast(Awaitable[bytes | None], self._redis.hget(f"{self._prefix}:keys", key_id))
        raw = await self._link.within(entry)
        return None if raw is None else key_from_json(raw)

    async def keys(self) -> tuple[KeyRecord, ...]:
        entries = cast(Awaitable[list[bytes]], self._redis.hvals(f"{self._prefix}:keys"))
        found = [key_from_json(raw) for raw in await self._link.within(entries)]
        return tuple(sorted(found, key=lambda record: (record.created_at, record.key_id)))

    async def acquire(self, demand: LimitDemand) -> LimitVerdict:
        limits = demand.limits
        names = (f"limit:{demand.key_id}", f"running:{demand.key_id}", f"quota:{demand.day}")
        args = (
            demand.key_id,
            demand.lease_id or "",
            demand.lease_s,
            demand.num_requests,
            demand.num_tokens,
            _limit(limits.requests_per_minute),
            _limit(limits.tokens_per_minute),
            _limit(limits.max_concurrency),
            _limit(limits.daily_tokens),
        )
        keys = [f"{self._prefix}:{name}" for name in names]
        denial, wait_s, requests, tokens, used = await self._link.within(
            self._acquire(keys=keys, args=args)
        )
        return LimitVerdict(
            denial=cast(Denial, denial.decode()),
            retry_after_s=float(wait_s),
            requests=level_of(limits.requests_per_minute, float(requests)),
            tokens=level_of(limits.tokens_per_minute, float(tokens)),
            quota_used=int(used),
        )

    async def settle(self, router_id: str, sequence: int, batch: Sequence[Settlement]) -> None:
        entries = json.dumps([_entry(settlement) for settlement in batch])
        keys = [f"{self._prefix}:settled:{router_id}"]
        await self._link.within(self._settle(keys=keys, args=(self._prefix, sequence, entries)))

    async def beat(self, router_id: str, *, ttl_s: float) -> int:
        keys = [f"{self._prefix}:routers"]
        return int(await self._link.within(self._beat(keys=keys, args=(router_id, ttl_s))))

    async def usage(self, day: str, key_id: str | None = None) -> tuple[UsageRow, ...]:
        entries = cast(
            Awaitable[dict[bytes, bytes]], self._redis.hgetall(f"{self._prefix}:usage:{day}")
        )
        sums: dict[tuple[str, str, str, bool], dict[str, int]] = {}
        for field, value in (await self._link.within(entries)).items():
            owner, model, batch, counter = json.loads(field)
            if key_id in (None, owner) and counter in COUNTERS:
                sums.setdefault((day, owner, model, bool(batch)), {})[counter] = int(value)
        return tuple(
            UsageRow(*slot, *(sums[slot].get(name, 0) for name in COUNTERS))
            for slot in sorted(sums)
        )

    async def close(self) -> None:
        await self._link.close()


def level_of(limit: int | None, level: float) -> Level | None:
    """As a client is told; None without a limit."""
    if limit is None:
        return None
    missing = max(0.0, limit - level)
    return Level(limit, max(0, int(level)), missing * 60 / limit)


def _limit(value: int | None) -> int:
    return NO_LIMIT if value is None else value


def _entry(settlement: Settlement) -> dict[str, object]:
    return {
        "key": settlement.key_id,
        "day": settlement.day,
        "rpm": _limit(settlement.limits.requests_per_minute),
        "tpm": _limit(settlement.limits.tokens_per_minute),
        "quota": settlement.limits.daily_tokens is not None,
        "requests": settlement.num_requests,
        "tokens": settlement.num_tokens,
        "quota_tokens": settlement.quota_tokens,
        "leases": settlement.lease_ids,
        "shares": settlement.shares,
        "usage": [
            (json.dumps((row.key_id, row.model, int(row.batch), name)), amount)
            for row in settlement.usage
            for name, amount in zip(COUNTERS, row.counts, strict=True)
            if amount
        ],
    }
