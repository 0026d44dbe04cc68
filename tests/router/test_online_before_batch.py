"""Online requests go before batches at every decision of the router."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fakes_batches import begin, ended, jsonl, line
from fakes_house import MODEL, House, Texts, house

from core.request import BACKGROUND_PRIORITY
from router.line.fair_queue import Ticket
from router.line.ttft_model import MIN_OBSERVATIONS
from router.request_spec import MAX_PRIORITY
from router.visit import BASE_PRIORITY
from state.tenants import PriorityClass

AHEAD_TOKENS = 100
LONG = [7] * 90
"""Fills what batches may have at workers, and nearly all that anybody may."""


def in_house(texts: Texts, test: Callable[[House], Awaitable[None]]) -> None:
    overrides: dict[str, dict[str, object]] = {"router": {"dispatch_ahead_tokens": AHEAD_TOKENS}}

    async def run() -> None:
        async with house(texts, overrides=overrides) as h:
            await test(h)

    asyncio.run(run())


async def ask(h: House, num_tokens: int, token: int = 5) -> int:
    body: dict[str, Any] = {"model": MODEL, "prompt": [token] * num_tokens, "max_tokens": 2}
    return (await h.http.post("/v1/completions", json=body)).status_code


def num_batch(h: House) -> int:
    return sum(attempt.in_background for attempt in h.p.attempts)


def test_workers_can_tell_a_batchs_attempts_whatever_priority_its_lines_ask_for() -> None:
    lowest = BASE_PRIORITY[PriorityClass.BATCH] - MAX_PRIORITY
    highest = max(BASE_PRIORITY[c] for c in PriorityClass if c is not PriorityClass.BATCH)
    assert highest + MAX_PRIORITY < BACKGROUND_PRIORITY <= lowest


def test_what_a_batch_has_at_workers_keeps_no_online_request_back(texts: Texts) -> None:
    """Workers overtake it, so it is nothing that an online request would have to wait for."""

    async def test(h: House) -> None:
        h.p.gate.clear()
        lines = [line(f"n-{n}", prompt=LONG, priority=-MAX_PRIORITY) for n in range(5)]
        batch = await begin(h.openai, jsonl(lines))
        await h.p.until(lambda p: num_batch(h) == 1)
        online = [asyncio.create_task(ask(h, 40, 20 + n)) for n in range(3)]
        await h.p.until(lambda p: len(p.attempts) - num_batch(h) == 3)
        assert num_batch(h) == 1, "no other line of it goes before them"
        h.p.gate.set()
        assert await asyncio.gather(*online) == [200] * 3
        done = await ended(h.openai, batch.id)
        assert done.request_counts is not None and done.request_counts.completed == 5
        assert num_batch(h) == 5

    in_house(texts, test)


def test_a_line_of_a_batch_waits_behind_online_requests_that_came_later(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.gate.clear()
        first = asyncio.create_task(ask(h, AHEAD_TOKENS, 11))
        await h.p.until(lambda p: len(p.attempts) == 1)
        second = asyncio.create_task(ask(h, AHEAD_TOKENS, 12))
        await h.p.until(lambda p: len(p.attempts) == 2)
        waiting = h.router.door.hall.line
        batch = await begin(h.openai, jsonl([line("a")]))
        while not waiting.num_waiting[PriorityClass.BATCH]:
            await h.http.get("/live")
        late = asyncio.create_task(ask(h, 60, 13))
        while not waiting.num_waiting[PriorityClass.STANDARD]:
            await h.http.get("/live")
        h.p.gate.set()
        assert list(await asyncio.gather(first, second, late)) == [200] * 3
        assert (await ended(h.openai, batch.id)).status == "completed"
        order = [attempt.in_background for attempt in h.p.attempts]
        assert order == [False, False, False, True]

    in_house(texts, test)


def test_a_batch_makes_no_online_request_look_late(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.gate.clear()
        batch = await begin(h.openai, jsonl([line("a", prompt=LONG)]))
        await h.p.until(lambda p: num_batch(h) == 1)
        waiting = h.router.door.hall.line
        for number in range(2 * MIN_OBSERVATIONS):
            waiting.model.observe(100.0 * number, float(number))
        expected = {PriorityClass.INTERACTIVE: 0.1, PriorityClass.STANDARD: 0.1}
        for each, seconds in (expected | {PriorityClass.BATCH: 1.0}).items():
            predicted = waiting.predicted_ttft_s(Ticket(each, "a", 10), waiting.views())
            assert predicted == pytest.approx(seconds, abs=1e-6)
        num_seen = waiting.model.num_observations
        h.p.gate.set()
        assert (await ended(h.openai, batch.id)).status == "completed"
        assert waiting.model.num_observations == num_seen, "it may have been overtaken"

    in_house(texts, test)
