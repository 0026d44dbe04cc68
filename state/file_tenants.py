"""Tenants in a file (SQLite): keys and usage for processes of one machine, without a server.

The command line writes keys beside a running router, so every call opens no more than a short
transaction; a call that waits longer for another process than the deadline fails.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from core.errors import ConfigError
from state.store import StoreUnavailableError
from state.tenants import COUNTERS, KeyRecord, Settlement, UsageRow, key_from_json

T = TypeVar("T")

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
        self._path = path
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            self._connection = sqlite3.connect(path, timeout=timeout_s, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode = WAL")
            # A power failure may take the last moments of usage with it, never the file.
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.executescript(_SCHEMA)
            self._add_columns()
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(f"tenants.file = {path}: {error}") from None

    def _add_columns(self) -> None:
        """A file of an older release lacks the counters that came since, which are the last."""
        known = {row[1] for row in self._connection.execute("PRAGMA table_info(usage)")}
        for name in COUNTERS:
            if name not in known:
                add = f"ALTER TABLE usage ADD COLUMN {name} INTEGER NOT NULL DEFAULT 0"
                self._connection.execute(add)

    async def put_key(self, record: KeyRecord) -> None:
        def put(connection: sqlite3.Connection) -> None:
            row = (record.key_id, record.to_json())
            connection.execute("INSERT OR REPLACE INTO keys VALUES (?, ?)", row)

        await self._call(put)

    async def get_key(self, key_id: str) -> KeyRecord | None:
        query = "SELECT record FROM keys WHERE key_id = ?"
        rows = await self._call(lambda c: c.execute(query, (key_id,)).fetchall())
        return key_from_json(rows[0][0]) if rows else None

    async def keys(self) -> tuple[KeyRecord, ...]:
        rows = await self._call(lambda c: c.execute("SELECT record FROM keys").fetchall())
        found = [key_from_json(row[0]) for row in rows]
        return tuple(sorted(found, key=lambda record: (record.created_at, record.key_id)))

    async def settle(self, router_id: str, sequence: int, batch: Sequence[Settlement]) -> None:
        rows = [(*row.slot, *row.counts) for settlement in batch for row in settlement.usage]

        def settle(connection: sqlite3.Connection) -> None:
            if connection.execute(_TAKE_SEQUENCE, (router_id, sequence)).rowcount:
                connection.executemany(_ADD_USAGE, rows)

        if rows:
            await self._call(settle)

    async def usage(self, day: str, key_id: str | None = None) -> tuple[UsageRow, ...]:
        query = "SELECT * FROM usage WHERE day = ? AND ? IN ('', key_id) ORDER BY 1, 2, 3, 4"
        rows = await self._call(lambda c: c.execute(query, (day, key_id or "")).fetchall())
        return tuple(
            UsageRow(day, owner, model, bool(batch), *counts)
            for day, owner, model, batch, *counts in rows
        )

    async def close(self) -> None:
        await asyncio.to_thread(self._connection.close)

    async def _call(self, work: Callable[[sqlite3.Connection], T]) -> T:
        return await asyncio.to_thread(self._locked, work)

    def _locked(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """One transaction: all of it, or nothing."""
        try:
            with self._lock, self._connection as connection:
                return work(connection)
        except sqlite3.Error as error:
            raise StoreUnavailableError(f"{self._path}: {error}") from None
