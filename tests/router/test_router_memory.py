"""What is kept of a request that has left: its record, and nothing that would need collecting."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from fakes_house import MODEL, House, Texts, house
from fakes_pull import DEADLINE_S

from router import lives
from router.life.request_life import RequestLife


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
def test_a_request_that_has_left_is_let_go_of_though_its_record_stays(
    texts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[weakref.ref[RequestLife]] = []

    class Seen(RequestLife):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            seen.append(weakref.ref(self))

    monkeypatch.setattr(lives, "RequestLife", Seen)

    async def ask(h: House) -> None:
        """A stream, a whole answer, two choices, and one that is cancelled midway."""
        body: dict[str, Any] = {"model": MODEL, "prompt": list(range(100, 140)), "max_tokens": 5}
        for fields in ({"stream": True}, {}, {"n": 2}):
            response = await h.http.post("/v1/completions", json=body | fields)
            assert response.status_code == 200
        h.d.tokens_leave.clear()
        asking = asyncio.create_task(h.http.post("/v1/completions", json=body))
        await h.d.until(lambda w: len(w.attempts) == 4)
        asking.cancel()
        assert await h.router.door.drained(DEADLINE_S)

    async def run() -> None:
        async with house(texts) as h:
            await ask(h)
            assert len(seen) == 4
            # Tasks end some turns of the loop after their request has left the house.
            async with asyncio.timeout(DEADLINE_S):
                while any(life() is not None for life in seen):
                    await asyncio.sleep(0)
            assert len(list(h.router.observer.ring.newest())) == 4

    asyncio.run(run())
