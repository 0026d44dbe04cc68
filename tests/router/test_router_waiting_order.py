"""Requests that wait for a worker to have room are served in the order of their coming."""

from __future__ import annotations

import asyncio
from typing import Any

from fakes_house import MODEL, House, Texts, house

from core.load import LoadReport

NUM_WAITING = 24
FULL = LoadReport(num_waiting=1, kv_blocks={"free": 10_000})
ROOMY = LoadReport(num_waiting=0, kv_blocks={"free": 10_000})


def test_who_has_waited_longest_is_served_first(texts: Texts) -> None:
    """None of them starves, however many come after it."""

    async def ask(h: House, number: int) -> int:
        body: dict[str, Any] = {"model": MODEL, "prompt": [100 + number] * 20, "max_tokens": 2}
        return (await h.http.post("/v1/completions", json=body)).status_code

    async def run() -> None:
        overrides: dict[str, dict[str, object]] = {"scheduler": {"max_num_waiting": 1}}
        async with house(texts, overrides=overrides) as h:
            fleet = h.router.fleet
            h.d.report(FULL)
            await h.until(lambda: any(load.num_waiting for _, load in fleet.loads()))
            asking = []
            for number in range(NUM_WAITING):
                asking.append(asyncio.create_task(ask(h, number)))
                while len(fleet._watchers) <= number:
                    await h.http.get("/live")
            assert not h.p.attempts
            h.d.report(ROOMY)
            assert await asyncio.gather(*asking) == [200] * NUM_WAITING
            served = [attempt.token_ids[0] - 100 for attempt in h.p.attempts]
            assert served == list(range(NUM_WAITING))

    asyncio.run(run())
