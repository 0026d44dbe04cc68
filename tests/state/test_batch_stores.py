"""Records of files and batches in a file and on Redis, and the leases that routers run them by."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from state.batches import BatchRecord, BatchStore, FileRecord, new_id
from state.file_batches import FileBatches
from state.redis_batches import RedisBatches

DEADLINE_S = 20.0
LONG_S = 3600.0

OpenStore: TypeAlias = Callable[[], BatchStore]


@pytest.fixture(params=["file", "redis"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    if request.param == "file":
        return lambda: FileBatches(tmp_path / "sub" / "batches.db", DEADLINE_S)
    url: str = request.getfixturevalue("redis_url")
    namespace = uuid.uuid4().hex
    return lambda: RedisBatches(url, namespace, DEADLINE_S)


def run(open_store: OpenStore, check: Callable[[BatchStore], Awaitable[None]]) -> None:
    async def body() -> None:
        store = open_store()
        try:
            await check(store)
        finally:
            await store.close()

    asyncio.run(body())


def a_file(now: float, owner: str = "a", **fields: Any) -> FileRecord:
    made = FileRecord(
        file_id=new_id("file", now),
        owner=owner,
        filename="x",
        purpose="batch",
        num_bytes=10,
        created_at=int(now),
    )
    return dataclasses.replace(made, **fields)


def a_batch(now: float, owner: str = "a") -> BatchRecord:
    return BatchRecord(
        batch_id=new_id("batch", now),
        owner=owner,
        model="m",
        endpoint="/v1/completions",
        input_file_id="file-0",
        completion_window="24h",
        created_at=int(now),
        expires_at=int(now) + 10,
        metadata={"a": "b"},
    )


def test_files_are_their_owners_and_in_order(open_store: OpenStore) -> None:
    async def check(store: BatchStore) -> None:
        assert await store.files("a") == () and await store.get_file("file-0") is None
        made = [a_file(now) for now in (3.0, 1.0, 2.0)]
        for record in (*made, a_file(4.0, owner="b")):
            assert await store.put_file(record)
        assert await store.files("a") == (made[1], made[2], made[0])
        assert await store.get_file(made[0].file_id) == made[0]
        assert await store.delete_file(made[0].file_id)
        assert not await store.delete_file(made[0].file_id)
        assert len(await store.files("a")) == 2 and len(await store.files("b")) == 1

    run(open_store, check)


def test_an_owners_files_together_have_a_limit(open_store: OpenStore) -> None:
    async def check(store: BatchStore) -> None:
        first, second = a_file(1.0), a_file(2.0)
        assert await store.put_file(first, max_total_bytes=15)
        assert not await store.put_file(second, max_total_bytes=15)
        assert await store.put_file(a_file(2.0, owner="b"), max_total_bytes=15)
        await store.delete_file(first.file_id)
        assert await store.put_file(second, max_total_bytes=15)

    run(open_store, check)


def test_expired_files_are_found(open_store: OpenStore) -> None:
    async def check(store: BatchStore) -> None:
        soon, late = a_file(1.0, expires_at=5), a_file(1.0, expires_at=50)
        for record in (soon, late, a_file(1.0)):
            await store.put_file(record)
        assert await store.expired_files(5.0) == (soon,)

    run(open_store, check)


def test_batches_are_paged_the_newest_first(open_store: OpenStore) -> None:
    async def check(store: BatchStore) -> None:
        made = [a_batch(float(now)) for now in range(1, 6)]
        for record in (*made, a_batch(9.0, owner="b")):
            await store.create_batch(record)
        assert await store.batches("a", after=None, limit=2) == (made[4], made[3])
        assert await store.batches("a", after=made[3].batch_id, limit=9) == tuple(made[2::-1])
        assert len(await store.open_batches()) == 6

    run(open_store, check)


def test_one_holder_at_a_time_and_only_the_latest_may_write(open_store: OpenStore) -> None:
    async def check(store: BatchStore) -> None:
        batch = a_batch(1.0)
        await store.create_batch(batch)
        first = await store.take(batch.batch_id, ttl_s=LONG_S)
        assert first == 1 and await store.take(batch.batch_id, ttl_s=LONG_S) is None
        assert await store.renew(batch.batch_id, first, ttl_s=LONG_S)
        await store.release(batch.batch_id, first)
        second = await store.take(batch.batch_id, ttl_s=LONG_S)
        assert second == 2
        await store.release(batch.batch_id, first)
        assert await store.take(batch.batch_id, ttl_s=LONG_S) is None, "not the first one's now"
        assert not await store.renew(batch.batch_id, first, ttl_s=LONG_S)
        changed = dataclasses.replace(batch, num_total=3)
        assert not await store.update(changed, first)
        assert await store.get_batch(batch.batch_id) == batch
        assert await store.update(changed, second)
        assert await store.get_batch(batch.batch_id) == changed

    run(open_store, check)


def test_a_lease_that_is_not_renewed_runs_out(open_store: OpenStore) -> None:
    async def check(store: BatchStore) -> None:
        batch = a_batch(1.0)
        await store.create_batch(batch)
        assert await store.take(batch.batch_id, ttl_s=0.001) == 1
        async with asyncio.timeout(DEADLINE_S):
            while (epoch := await store.take(batch.batch_id, ttl_s=LONG_S)) is None:
                pass
        assert epoch == 2

    run(open_store, check)


def test_what_has_ended_is_taken_by_nobody_and_stays_as_it_is(open_store: OpenStore) -> None:
    async def check(store: BatchStore) -> None:
        batch = a_batch(1.0)
        await store.create_batch(batch)
        epoch = await store.take(batch.batch_id, ttl_s=LONG_S)
        assert epoch is not None
        done = dataclasses.replace(batch, status="completed")
        assert await store.update(done, epoch)
        assert await store.open_batches() == ()
        assert not await store.update(batch, epoch)
        await store.release(batch.batch_id, epoch)
        assert await store.take(batch.batch_id, ttl_s=LONG_S) is None
        await store.ask_cancel(batch.batch_id, 7)
        assert await store.get_batch(batch.batch_id) == done

    run(open_store, check)


def test_a_wish_to_cancel_survives_what_the_holder_writes(open_store: OpenStore) -> None:
    async def check(store: BatchStore) -> None:
        batch = a_batch(1.0)
        await store.create_batch(batch)
        epoch = await store.take(batch.batch_id, ttl_s=LONG_S)
        assert epoch is not None
        await store.ask_cancel(batch.batch_id, 7)
        await store.ask_cancel(batch.batch_id, 9)
        assert await store.update(dataclasses.replace(batch, num_total=3), epoch)
        seen = await store.get_batch(batch.batch_id)
        assert seen is not None and (seen.status, seen.cancelling_at) == ("cancelling", 7)
        assert seen.num_total == 3

    run(open_store, check)


def test_records_outlive_the_process(open_store: OpenStore) -> None:
    async def check(store: BatchStore) -> None:
        batch, file = a_batch(1.0), a_file(1.0)
        await store.create_batch(batch)
        await store.put_file(file)
        other = open_store()
        try:
            assert await other.open_batches() == (batch.batch_id,)
            assert await other.get_file(file.file_id) == file
        finally:
            await other.close()

    run(open_store, check)


def test_what_all_owners_have_is_added_up(open_store: OpenStore) -> None:
    async def check(store: BatchStore) -> None:
        empty = await store.totals()
        assert (empty.num_files, empty.num_file_bytes, dict(empty.num_open)) == (0, 0, {})
        for owner in ("a", "b", "b"):
            await store.put_file(a_file(1.0, owner=owner))
        made = [a_batch(float(now), owner) for now, owner in enumerate("aabb")]
        for record in made:
            await store.create_batch(record)
        epoch = await store.take(made[0].batch_id, ttl_s=LONG_S)
        assert epoch is not None
        assert await store.update(dataclasses.replace(made[0], status="completed"), epoch)
        epoch = await store.take(made[1].batch_id, ttl_s=LONG_S)
        assert epoch is not None
        assert await store.update(dataclasses.replace(made[1], status="in_progress"), epoch)
        await store.ask_cancel(made[2].batch_id, 7)
        found = await store.totals()
        assert (found.num_files, found.num_file_bytes) == (3, 30)
        assert dict(found.num_open) == {"in_progress": 1, "cancelling": 1, "validating": 1}
        await store.delete_file((await store.files("a"))[0].file_id)
        assert (await store.totals()).num_file_bytes == 20

    run(open_store, check)
