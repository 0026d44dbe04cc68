"""One SQLite file for several users: made when needed, written in whole transactions."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest

from state.sqlite_file import SqliteFile
from state.store import StoreUnavailableError

SCHEMA = "CREATE TABLE IF NOT EXISTS things (name TEXT PRIMARY KEY);"
LONG_S = 20.0


@contextlib.asynccontextmanager
async def opened(path: Path, timeout_s: float = LONG_S) -> AsyncIterator[SqliteFile]:
    file = SqliteFile(path, SCHEMA, timeout_s=timeout_s, synchronous="NORMAL")
    try:
        yield file
    finally:
        await file.close()


def add(name: str, connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO things VALUES (?)", (name,))


async def names(file: SqliteFile) -> list[str]:
    return [row[0] for row in await file.rows("SELECT name FROM things ORDER BY name")]


def test_looking_makes_no_file_and_writing_does(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "things.db"

    async def run() -> None:
        async with opened(path) as file:
            assert await names(file) == [] and not path.exists()
            await file.write(partial(add, "a"))
            assert await names(file) == ["a"]
            assert path.stat().st_mode & 0o077 == 0

    asyncio.run(run())


def test_a_transaction_is_whole_or_nothing(tmp_path: Path) -> None:
    def twice(connection: sqlite3.Connection) -> None:
        add("b", connection)
        add("a", connection)

    async def run() -> None:
        async with opened(tmp_path / "things.db") as file:
            await file.write(partial(add, "a"))
            with pytest.raises(StoreUnavailableError, match=r"things\.db"):
                await file.write(twice)
            assert await names(file) == ["a"]

    asyncio.run(run())


def test_two_users_see_what_the_other_has_written(tmp_path: Path) -> None:
    async def run() -> None:
        async with opened(tmp_path / "things.db") as one, opened(tmp_path / "things.db") as other:
            files = enumerate([one, other] * 10)
            await asyncio.gather(*(file.write(partial(add, f"{n:02}")) for n, file in files))
            assert await names(one) == await names(other) == [f"{n:02}" for n in range(20)]

    asyncio.run(run())


def test_many_may_make_it_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        for attempt in range(20):
            path = tmp_path / f"{attempt}.db"
            async with contextlib.AsyncExitStack() as stack:
                files = [await stack.enter_async_context(opened(path)) for _ in range(8)]
                await asyncio.gather(*(f.write(partial(add, str(n))) for n, f in enumerate(files)))
                assert await names(files[0]) == [str(n) for n in range(8)]

    asyncio.run(run())


def test_who_waits_too_long_for_another_is_told_and_readers_do_not_wait(tmp_path: Path) -> None:
    path = tmp_path / "things.db"

    async def run() -> None:
        async with opened(path, timeout_s=0.01) as file:
            await file.write(partial(add, "a"))
            holder = sqlite3.connect(path, isolation_level=None)
            try:
                holder.execute("BEGIN IMMEDIATE")
                with pytest.raises(StoreUnavailableError, match="locked"):
                    await file.write(partial(add, "b"))
                assert await names(file) == ["a"]
            finally:
                holder.close()
            await file.write(partial(add, "b"))
            assert await names(file) == ["a", "b"]

    asyncio.run(run())


def test_what_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "things.db").write_text("nothing of the kind, and long enough to be looked at " * 9)

    async def run() -> None:
        async with opened(tmp_path / "things.db") as file:
            with pytest.raises(StoreUnavailableError, match=r"things\.db"):
                await names(file)

    asyncio.run(run())
