"""Files' and batches' records on a Redis server: any router that shares it may go on with a batch.

    {ns}:files           hash  file id -> JSON of FileRecord
    {ns}:files:OWNER     zset  file ids of that owner, all of score 0
    {ns}:file-bytes      hash  owner -> sum of its files' sizes
    {ns}:file-expiry     zset  file id -> when it ends
    {ns}:batches         hash  batch id -> JSON of BatchRecord
    {ns}:batches:OWNER   zset  batch ids of that owner, all of score 0
    {ns}:open-batches    zset  ids of those that have not ended, all of score 0
    {ns}:batch-cancels   hash  batch id -> when its end was asked for
    {ns}:batch-epochs    hash  batch id -> the latest epoch of its lease
    {ns}:batch-lease:ID  the epoch that holds it; runs out by itself

Members of one score are in the order of their names, which is that of their creation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar, cast

from state.batches import (
    MAX_COUNTED,
    BatchRecord,
    FileRecord,
    Totals,
    batch_from_json,
    file_from_json,
)
from state.redis_link import RedisLink, milliseconds

T = TypeVar("T")

MAX_EXPIRED = 100

_PUT_FILE = """
local ns, id, owner, bytes = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local used = tonumber(redis.call('HGET', ns .. ':file-bytes', owner) or '0')
local limit = tonumber(ARGV[5])
if limit >= 0 and used + bytes > limit then return 0 end
redis.call('HSET', ns .. ':files', id, ARGV[7])
redis.call('ZADD', ns .. ':files:' .. owner, 0, id)
redis.call('HINCRBY', ns .. ':file-bytes', owner, bytes)
if ARGV[6] ~= '' then redis.call('ZADD', ns .. ':file-expiry', ARGV[6], id) end
return 1
"""
_DELETE_FILE = """
local ns, id = ARGV[1], ARGV[2]
local raw = redis.call('HGET', ns .. ':files', id)
if not raw then return 0 end
local record = cjson.decode(raw)
redis.call('HDEL', ns .. ':files', id)
redis.call('ZREM', ns .. ':files:' .. record.owner, id)
redis.call('HINCRBY', ns .. ':file-bytes', record.owner, -record.num_bytes)
redis.call('ZREM', ns .. ':file-expiry', id)
return 1
"""
_CREATE = """
local ns, id = ARGV[1], ARGV[2]
redis.call('HSET', ns .. ':batches', id, ARGV[4])
redis.call('ZADD', ns .. ':batches:' .. ARGV[3], 0, id)
redis.call('ZADD', ns .. ':open-batches', 0, id)
return 1
"""
_CANCEL = """
local ns, id = ARGV[1], ARGV[2]
if not redis.call('ZSCORE', ns .. ':open-batches', id) then return 0 end
return redis.call('HSETNX', ns .. ':batch-cancels', id, ARGV[3])
"""
_TAKE = """
local ns, id = ARGV[1], ARGV[2]
local lease = ns .. ':batch-lease:' .. id
if not redis.call('ZSCORE', ns .. ':open-batches', id) then return 0 end
if redis.call('EXISTS', lease) == 1 then return 0 end
local epoch = redis.call('HINCRBY', ns .. ':batch-epochs', id, 1)
redis.call('SET', lease, epoch, 'PX', ARGV[3])
return epoch
"""
_RENEW = """
local ns, id = ARGV[1], ARGV[2]
if redis.call('HGET', ns .. ':batch-epochs', id) ~= ARGV[3] then return 0 end
redis.call('SET', ns .. ':batch-lease:' .. id, ARGV[3], 'PX', ARGV[4])
return 1
"""
_RELEASE = """
local lease = ARGV[1] .. ':batch-lease:' .. ARGV[2]
if redis.call('GET', lease) == ARGV[3] then redis.call('DEL', lease) end
return 1
"""
_UPDATE = """
local ns, id = ARGV[1], ARGV[2]
if redis.call('HGET', ns .. ':batch-epochs', id) ~= ARGV[3] then return 0 end
if not redis.call('ZSCORE', ns .. ':open-batches', id) then return 0 end
redis.call('HSET', ns .. ':batches', id, ARGV[4])
if ARGV[5] == '1' then
  redis.call('ZREM', ns .. ':open-batches', id)
  redis.call('DEL', ns .. ':batch-lease:' .. id)
end
return 1
"""


class RedisBatches:
    """A `BatchStore`; every call fails within `timeout_s` without an answer.

    Raises ConfigError for a malformed URL. Connections belong to the event loop that first uses
    them.
    """

    def __init__(self, url: str, namespace: str, timeout_s: float) -> None:
        self._link = RedisLink(url, namespace, timeout_s)
        self._redis, self._prefix = self._link.client, self._link.prefix
        self._files = f"{self._prefix}:files"
        self._batches = f"{self._prefix}:batches"

    async def put_file(self, record: FileRecord, *, max_total_bytes: int | None = None) -> bool:
        limit = -1 if max_total_bytes is None else max_total_bytes
        expires_at = "" if record.expires_at is None else record.expires_at
        row = (record.file_id, record.owner, record.num_bytes, limit, expires_at, record.to_json())
        return bool(await self._run(_PUT_FILE, *row))

    async def get_file(self, file_id: str) -> FileRecord | None:
        raw = await self._link.within(_get(self._redis.hget(self._files, file_id)))
        return None if raw is None else file_from_json(raw)

    async def delete_file(self, file_id: str) -> bool:
        return bool(await self._run(_DELETE_FILE, file_id))

    async def files(self, owner: str) -> tuple[FileRecord, ...]:
        ids = await self._link.within(_list(self._redis.zrange(f"{self._files}:{owner}", 0, -1)))
        return tuple(file_from_json(raw) for raw in await self._records(self._files, ids))

    async def expired_files(self, now: float) -> tuple[FileRecord, ...]:
        expiry = f"{self._prefix}:file-expiry"
        found = self._redis.zrangebyscore(expiry, "-inf", now, start=0, num=MAX_EXPIRED)
        ids = await self._link.within(_list(found))
        return tuple(file_from_json(raw) for raw in await self._records(self._files, ids))

    async def create_batch(self, record: BatchRecord) -> None:
        await self._run(_CREATE, record.batch_id, record.owner, record.to_json())

    async def get_batch(self, batch_id: str) -> BatchRecord | None:
        found = await self._merged([batch_id.encode()])
        return found[0] if found else None

    async def batches(
        self, owner: str, *, after: str | None, limit: int
    ) -> tuple[BatchRecord, ...]:
        highest = "+" if after is None else f"({after}"
        found = self._redis.zrevrangebylex(f"{self._batches}:{owner}", highest, "-", 0, limit)
        return await self._merged(await self._link.within(_list(found)))

    async def open_batches(self) -> tuple[str, ...]:
        found = self._redis.zrange(f"{self._prefix}:open-batches", 0, -1)
        return tuple(raw.decode() for raw in await self._link.within(_list(found)))

    async def ask_cancel(self, batch_id: str, at: int) -> None:
        await self._run(_CANCEL, batch_id, at)

    async def take(self, batch_id: str, *, ttl_s: float) -> int | None:
        return int(await self._run(_TAKE, batch_id, milliseconds(ttl_s))) or None

    async def renew(self, batch_id: str, epoch: int, *, ttl_s: float) -> bool:
        return bool(await self._run(_RENEW, batch_id, epoch, milliseconds(ttl_s)))

    async def release(self, batch_id: str, epoch: int) -> None:
        await self._run(_RELEASE, batch_id, epoch)

    async def update(self, record: BatchRecord, epoch: int) -> bool:
        row = (record.batch_id, epoch, record.to_json(), int(record.is_final))
        return bool(await self._run(_UPDATE, *row))

    async def totals(self) -> Totals:
        num_files = await self._link.within(_number(self._redis.hlen(self._files)))
        sizes = self._redis.hvals(f"{self._prefix}:file-bytes")
        num_bytes = sum(map(int, await self._link.within(_list(sizes))))
        found = self._redis.zrange(f"{self._prefix}:open-batches", 0, MAX_COUNTED - 1)
        records = await self._merged(await self._link.within(_list(found)))
        return Totals(num_files, num_bytes, Counter[str](record.status for record in records))

    async def close(self) -> None:
        await self._link.close()

    async def _merged(self, ids: Sequence[bytes]) -> tuple[BatchRecord, ...]:
        """Records with what clients asked for meanwhile."""
        if not ids:
            return ()
        names = [raw.decode() for raw in ids]
        raws = await self._link.within(_list(self._redis.hmget(self._batches, names)))
        cancels = self._redis.hmget(f"{self._prefix}:batch-cancels", names)
        asked = await self._link.within(_list(cancels))
        return tuple(
            batch_from_json(raw).cancelled_by_client(None if at is None else int(at))
            for raw, at in zip(raws, asked, strict=True)
            if raw is not None
        )

    async def _records(self, key: str, ids: Sequence[bytes]) -> list[bytes]:
        if not ids:
            return []
        names = [raw.decode() for raw in ids]
        raws = await self._link.within(_list(self._redis.hmget(key, names)))
        return [raw for raw in raws if raw is not None]

    async def _run(self, script: str, *values: str | int) -> Any:
        # One key names the slot that all of them are in.
        call = self._redis.eval(script, 1, self._prefix, self._prefix, *map(str, values))
        return await self._link.within(call)


def _get(call: object) -> Awaitable[bytes | None]:
    return cast(Awaitable[bytes | None], call)


def _list(call: object) -> Awaitable[list[bytes]]:
    return cast(Awaitable[list[bytes]], call)


def _number(call: object) -> Awaitable[int]:
    return cast(Awaitable[int], call)
