"""An SQLite file that the processes of one machine share: one short transaction a call.

A call that waits for another process longer than the deadline fails. Threads of one process take
turns on one connection, which is opened when it is first needed.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

from state.store import StoreUnavailableError

T = TypeVar("T")

_RETRY_S = 0.005
"""SQLite tells nobody when it becomes free, and its own waiting leaves this case out."""


class SqliteFile:
    """The file at `path`, which only its owner can read.

    `synchronous`: FULL, what was written outlives a power failure; NORMAL, the last moments may be
    lost with it, never the file. Every call raises StoreUnavailableError for what the file does.
    """

    def __init__(
        self, path: Path, schema: str, *, timeout_s: float, synchronous: Literal["NORMAL", "FULL"]
    ) -> None:
        """`schema` makes what is not there yet."""
        self._path = path
        self._schema = schema
        self._timeout_s = timeout_s
        self._synchronous = synchronous
        self._lock = threading.Lock()
        self._connection: sqlite3.Connection | None = None

    def open(self) -> None:
        """Makes the file, if it isn't there. Blocking; raises OSError, sqlite3.Error."""
        with self._lock:
            self._opened()

    async def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        """What one query finds; nothing as long as nobody has made the file."""
        return await asyncio.to_thread(self._rows, query, values)

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """All of `work` in one transaction, or nothing. Makes the file, if it isn't there."""
        return await asyncio.to_thread(self._write, work)

    async def close(self) -> None:
        """Idempotent."""
        await asyncio.to_thread(self._close)

    def _rows(self, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        try:
            with self._lock:
                if self._connection is None and not self._path.exists():
                    return []
                return self._opened().execute(query, values).fetchall()
        except (OSError, sqlite3.Error) as error:
            raise self._unavailable(error) from None

    def _write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            with self._lock, self._opened() as connection:
                # Who reads before it writes must not find that somebody else wrote in between.
                connection.execute("BEGIN IMMEDIATE")
                return work(connection)
        except (OSError, sqlite3.Error) as error:
            raise self._unavailable(error) from None

    def _close(self) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._open()
        return self._connection

    def _open(self) -> sqlite3.Connection:
        """Several that make the file at once get in each other's way without waiting."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch(mode=0o600)
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                return self._connect()
            except sqlite3.OperationalError as error:
                is_busy = error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY
                if not is_busy or time.monotonic() > deadline_s:
                    raise
                time.sleep(_RETRY_S)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=self._timeout_s, check_same_thread=False, isolation_level=None
        )
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(f"PRAGMA synchronous = {self._synchronous}")
            connection.executescript(self._schema)
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def _unavailable(self, error: Exception) -> StoreUnavailableError:
        return StoreUnavailableError(f"{self._path}: {error}")
