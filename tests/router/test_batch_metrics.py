"""What /metrics tells of batches: lines, batches and files, under labels that nobody can add to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from fakes_batches import LOOK_EVERY_S, begin, ended, jsonl, line
from fakes_house import House, Texts, house
from fakes_pull import DEADLINE_S

from bench.exposition import gauge
from core import metric_names as names
from state.batches import FINAL, OPEN


def in_house(texts: Texts, test: Callable[[House], Awaitable[None]], **more: Any) -> None:
    async def run() -> None:
        async with house(texts, **more) as h:
            await test(h)

    asyncio.run(run())


async def shown(h: House, name: str) -> dict[str, float]:
    """By the value of the only label, those that are 0 left out."""
    page = (await h.http.get("/metrics")).text
    found = {k.partition("=")[2].strip('"'): v for k, v in gauge(page, name).items()}
    return {label: value for label, value in found.items() if value}


async def until_shown(h: House, name: str, expected: dict[str, float]) -> None:
    """Batches and files are counted from time to time, ends once they are written down."""
    async with asyncio.timeout(DEADLINE_S):
        while await shown(h, name) != expected:
            await asyncio.sleep(LOOK_EVERY_S)


def test_lines_are_counted_by_what_became_of_them(texts: Texts) -> None:
    async def test(h: House) -> None:
        lines = [line("a"), line("b"), line("bad", temperature=9)]
        await ended(h.openai, (await begin(h.openai, jsonl(lines))).id)
        assert await shown(h, names.BATCH_LINES_TOTAL) == {"completed": 2, "failed": 1}
        await until_shown(h, names.BATCHES_ENDED_TOTAL, {"completed": 1})
        await ended(h.openai, (await begin(h.openai, b"nonsense\n")).id)
        await until_shown(h, names.BATCHES_ENDED_TOTAL, {"completed": 1, "failed": 1})
        assert await shown(h, names.BATCH_LINES_TOTAL) == {"completed": 2, "failed": 1}
        await until_shown(h, names.BATCHES_OPEN, {})

    in_house(texts, test)


def test_what_is_under_way_and_what_is_cancelled_shows(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.d.gate.clear()
        batch = await begin(h.openai, jsonl([line(f"n-{n}") for n in range(5)]))
        await h.d.until(lambda d: len(d.attempts) == 5)
        assert await shown(h, names.BATCH_LINES_RUNNING) == {"": 5}
        await until_shown(h, names.BATCHES_OPEN, {"in_progress": 1})
        await h.openai.batches.cancel(batch.id)
        await ended(h.openai, batch.id)
        assert await shown(h, names.BATCH_LINES_TOTAL) == {"cancelled": 5}
        await until_shown(h, names.BATCHES_ENDED_TOTAL, {"cancelled": 1})
        assert await shown(h, names.BATCH_LINES_RUNNING) == {}
        await until_shown(h, names.BATCHES_OPEN, {})

    in_house(texts, test)


def test_lines_that_a_window_leaves_over_are_expired(texts: Texts) -> None:
    now = time.time()

    async def test(h: House) -> None:
        nonlocal now
        h.d.gate.clear()
        batch = await begin(h.openai, jsonl([line("a"), line("b")]))
        await h.d.until(lambda d: bool(d.attempts))
        now += 24 * 3600 + 1
        await ended(h.openai, batch.id)
        assert await shown(h, names.BATCH_LINES_TOTAL) == {"expired": 2}
        await until_shown(h, names.BATCHES_ENDED_TOTAL, {"expired": 1})

    in_house(texts, test, wall=lambda: now)


def test_files_and_their_bytes_are_told(texts: Texts) -> None:
    async def test(h: House) -> None:
        await until_shown(h, names.FILES, {})
        data = jsonl([line("a")])
        made = [await h.openai.files.create(file=data, purpose="batch") for _ in range(3)]
        await until_shown(h, names.FILES, {"": 3})
        await until_shown(h, names.FILE_BYTES, {"": 3 * len(data)})
        await h.openai.files.delete(made[0].id)
        await until_shown(h, names.FILE_BYTES, {"": 2 * len(data)})

    in_house(texts, test)


def test_every_label_is_there_from_the_beginning_and_no_other(texts: Texts) -> None:
    async def test(h: House) -> None:
        page = (await h.http.get("/metrics")).text
        states = {"completed", "failed", "cancelled", "expired"}
        for name, label, values in (
            (names.BATCH_LINES_TOTAL, "state", states),
            (names.BATCHES_ENDED_TOTAL, "status", FINAL),
            (names.BATCHES_OPEN, "status", OPEN),
        ):
            assert set(gauge(page, name)) == {f'{label}="{value}"' for value in values}
        for name in (names.BATCH_LINES_RUNNING, names.FILES, names.FILE_BYTES):
            assert gauge(page, name) == {"": 0.0}

    in_house(texts, test)
