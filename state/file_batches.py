"""Files' and batches' records in a file (SQLite): for the routers of one machine, without a server.

The file is made when the first record is written; until then everything is empty.
"""

from __future__ import annotations

import sqlite3
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from state.batches import (
    MAX_COUNTED,
    BatchRecord,
    FileRecord,
    Totals,
    batch_from_json,
    file_from_json,
)
from state.sqlite_file import SqliteFile

_SCHEMA = """
CREATE TABLE IF NOT EXISTS files (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, bytes INTEGER NOT NULL, expires_at INTEGER,
    record TEXT NOT NULL
);
CREATE INDEX IF NOT EXISTS files_of_owner ON files (owner, id);
CREATE INDEX IF NOT EXISTS files_by_expiry ON files (expires_at);
CREATE TABLE IF NOT EXISTS batches (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, open INTEGER NOT NULL, record TEXT NOT NULL,
    cancel_at INTEGER, epoch INTEGER NOT NULL DEFAULT 0, leased_until REAL NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS batches_of_owner ON batches (owner, id);
CREATE INDEX IF NOT EXISTS open_batches ON batches (open, id);
"""
MAX_EXPIRED = 100
"""Files that are told of at once."""


class FileBatches:
    """A `BatchStore` in the file at `path`, which only its owner can read.

    `wall` is Unix time in seconds, by which leases run out.
    """

    def __init__(self, path: Path, timeout_s: float, wall: Callable[[], float] = time.time) -> None:
        self._wall = wall
        self._file = SqliteFile(path, _SCHEMA, timeout_s=timeout_s, synchronous="FULL")

    async def put_file(self, record: FileRecord, *, max_total_bytes: int | None = None) -> bool:
        def put(connection: sqlite3.Connection) -> bool:
            query = "SELECT coalesce(sum(bytes), 0) FROM files WHERE owner = ?"
            used = int(connection.execute(query, (record.owner,)).fetchone()[0])
            if max_total_bytes is not None and used + record.num_bytes > max_total_bytes:
                return False
            row = (
                record.file_id,
                record.owner,
                record.num_bytes,
                record.expires_at,
                record.to_json(),
            )
            connection.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?)", row)
            return True

        return await self._file.write(put)

    async def get_file(self, file_id: str) -> FileRecord | None:
        rows = await self._file.rows("SELECT record FROM files WHERE id = ?", file_id)
        return file_from_json(rows[0][0]) if rows else None

    async def delete_file(self, file_id: str) -> bool:
        query = "DELETE FROM files WHERE id = ?"
        return await self._file.write(lambda c: c.execute(query, (file_id,)).rowcount > 0)

    async def files(self, owner: str) -> tuple[FileRecord, ...]:
        rows = await self._file.rows("SELECT record FROM files WHERE owner = ? ORDER BY id", owner)
        return tuple(file_from_json(row[0]) for row in rows)

    async def expired_files(self, now: float) -> tuple[FileRecord, ...]:
        query = f"SELECT record FROM files WHERE expires_at <= ? LIMIT {MAX_EXPIRED}"
        return tuple(file_from_json(row[0]) for row in await self._file.rows(query, now))

    async def create_batch(self, record: BatchRecord) -> None:
        query = "INSERT INTO batches (id, owner, open, record) VALUES (?, ?, 1, ?)"
        row = (record.batch_id, record.owner, record.to_json())
        await self._file.write(lambda c: c.execute(query, row).rowcount)

    async def get_batch(self, batch_id: str) -> BatchRecord | None:
        rows = await self._file.rows("SELECT record, cancel_at FROM batches WHERE id = ?", batch_id)
        return _batch(rows[0]) if rows else None

    async def batches(
        self, owner: str, *, after: str | None, limit: int
    ) -> tuple[BatchRecord, ...]:
        query = (
            "SELECT record, cancel_at FROM batches WHERE owner = ? AND (? IS NULL OR id < ?) "
            "ORDER BY id DESC LIMIT ?"
        )
        rows = await self._file.rows(query, owner, after, after, limit)
        return tuple(_batch(row) for row in rows)

    async def open_batches(self) -> tuple[str, ...]:
        rows = await self._file.rows("SELECT id FROM batches WHERE open = 1 ORDER BY id")
        return tuple(row[0] for row in rows)

    async def ask_cancel(self, batch_id: str, at: int) -> None:
        query = "UPDATE batches SET cancel_at = ? WHERE id = ? AND open = 1 AND cancel_at IS NULL"
        await self._file.write(lambda c: c.execute(query, (at, batch_id)).rowcount)

    async def take(self, batch_id: str, *, ttl_s: float) -> int | None:
        query = (
            "UPDATE batches SET epoch = epoch + 1, leased_until = ? "
            "WHERE id = ? AND open = 1 AND leased_until <= ? RETURNING epoch"
        )

        def take(connection: sqlite3.Connection) -> int | None:
            now = self._wall()
            row = connection.execute(query, (now + ttl_s, batch_id, now)).fetchone()
            return None if row is None else int(row[0])

        return await self._file.write(take)

    async def renew(self, batch_id: str, epoch: int, *, ttl_s: float) -> bool:
        query = "UPDATE batches SET leased_until = ? WHERE id = ? AND epoch = ?"
        row = (self._wall() + ttl_s, batch_id, epoch)
        return await self._file.write(lambda c: c.execute(query, row).rowcount > 0)

    async def release(self, batch_id: str, epoch: int) -> None:
        query = "UPDATE batches SET leased_until = 0 WHERE id = ? AND epoch = ?"
        await self._file.write(lambda c: c.execute(query, (batch_id, epoch)).rowcount)

    async def update(self, record: BatchRecord, epoch: int) -> bool:
        query = "UPDATE batches SET record = ?, open = ? WHERE id = ? AND epoch = ? AND open = 1"
        row = (record.to_json(), int(not record.is_final), record.batch_id, epoch)
        return await self._file.write(lambda c: c.execute(query, row).rowcount > 0)

    async def totals(self) -> Totals:
        files = await self._file.rows("SELECT count(*), coalesce(sum(bytes), 0) FROM files")
        query = "SELECT record, cancel_at FROM batches WHERE open = 1 ORDER BY id LIMIT ?"
        records = [_batch(row) for row in await self._file.rows(query, MAX_COUNTED)]
        num_files, num_file_bytes = files[0] if files else (0, 0)
        return Totals(num_files, num_file_bytes, Counter[str](record.status for record in records))

    async def close(self) -> None:
        await self._file.close()


def _batch(row: tuple[str, int | None]) -> BatchRecord:
    record, cancel_at = row
    return batch_from_json(record).cancelled_by_client(cancel_at)
