"""Tenants in a file (SQLite): keys and usage for processes of one machine, without a server.

The command line writes keys beside a running router.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

from core.errors import ConfigError
from state.sqlite_file import SqliteFile
from state.tenants import COUNTERS, KeyRecord, Settlement, UsageRow, key_from_json

_SLOT = ("day", "key_id", "model", "batch")
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS keys (key_id TEXT PRIMARY KEY, record TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS settled (router_id TEXT PRIMARY KEY, sequence INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS usage (
    day TEXT, key_id TEXT, model TEXT, batch INTEGER,
    {", ".join(f"{name} INTEGER NOT NULL" for name in COUNTERS)},
    PRIMARY KEY ({", ".join(_SLOT)})
);
"""
_ADD_USAGE = (
    f"INSERT INTO usage VALUES ({', '.join('?' * (len(_SLOT) + len(COUNTERS)))}) "
    f"ON CONFLICT ({', '.join(_SLOT)}) DO UPDATE SET "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in COUNTERS)
)
_TAKE_SEQUENCE = (
    "INSERT INTO settled VALUES (?, ?) ON CONFLICT (router_id) DO UPDATE "
    "SET sequence = excluded.sequence WHERE excluded.sequence > sequence"
)


class FileTenants:
    """A `TenantStore` in the file at `path`, which only its owner can read.

    Raises ConfigError if the file can't be opened.
    """

    def __init__(self, path: Path, timeout_s: float) -> None:
        # A power failure may take the last moments of usage with it.
        self._file = SqliteFile(path, _SCHEMA, timeout_s=timeout_s, synchronous="NORMAL")
        try:
            self._file.open()
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"tenants.file = {path}: {error}") from None

    async def put_key(self, record: KeyRecord) -> None:
        query = "INSERT OR REPLACE INTO keys VALUES (?, ?)"
        row = (record.key_id, record.to_json())
        await self._file.write(lambda c: c.execute(query, row).rowcount)

    async def get_key(self, key_id: str) -> KeyRecord | None:
        rows = await self._file.rows("SELECT record FROM keys WHERE key_id = ?", key_id)
        return key_from_json(rows[0][0]) if rows else None

    async def keys(self) -> tuple[KeyRecord, ...]:
        found = [key_from_json(row[0]) for row in await self._file.rows("SELECT record FROM keys")]
        return tuple(sorted(found, key=lambda record: (record.created_at, record.key_id)))

    async def settle(self, router_id: str, sequence: int, batch: Sequence[Settlement]) -> None:
        rows = [(*row.slot, *row.counts) for settlement in batch for row in settlement.usage]

        def settle(connection: sqlite3.Connection) -> None:
            if connection.execute(_TAKE_SEQUENCE, (router_id, sequence)).rowcount:
                connection.executemany(_ADD_USAGE, rows)

        if rows:
            await self._file.write(settle)

    async def usage(self, day: str, key_id: str | None = None) -> tuple[UsageRow, ...]:
        query = "SELECT * FROM usage WHERE day = ? AND ? IN ('', key_id) ORDER BY 1, 2, 3, 4"
        return tuple(
            UsageRow(day, owner, model, bool(batch), *counts)
            for day, owner, model, batch, *counts in await self._file.rows(query, day, key_id or "")
        )

    async def close(self) -> None:
        await self._file.close()
