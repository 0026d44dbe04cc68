"""A running request is ended by its id, or by the name its client chose, and by nothing else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes_house import MODEL, House, Texts, house
from fakes_pull import DEADLINE_S
from fakes_tenants import bearer, file_settings, keyed_house, make_key

PROMPT = list(range(100, 140))


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": PROMPT, "max_tokens": 50, "seed": 1} | fields


def in_house(texts: Texts, test: Callable[[House], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with house(texts, **settings) as h:
            await test(h)

    asyncio.run(run())


async def cancel(h: House, name: str) -> httpx.Response:
    return await h.http.post(f"/v1/requests/{name}/cancel")


async def events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


STREAMS: dict[str, dict[str, Any]] = {
    "/v1/completions": body(stream=True),
    "/v1/chat/completions": {
        "model": MODEL,
        "messages": [{"role": "user", "content": "x"}],
        "max_tokens": 50,
        "stream": True,
    },
    "/v1/responses": {"model": MODEL, "input": "x", "max_output_tokens": 50, "stream": True},
}


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_ends_with_an_event_that_says_so(texts: Texts, path: str) -> None:
    async def test(h: House) -> None:
        h.d.gate.clear()
        async with h.http.stream("POST", path, json=STREAMS[path]) as response:
            seen = events(response)
            first = await anext(seen)
            name = first["id"] if "id" in first else first["response"]["id"]
            cancelled = await cancel(h, name)
            assert cancelled.status_code == 200
            assert cancelled.json() == {
                "id": response.headers["x-request-id"],
                "object": "request",
                "status": "cancelled",
            }
            *_, last = [event async for event in seen]
        if path == "/v1/responses":
            assert last["type"] == "response.failed"
            assert last["response"]["status"] == "cancelled"
            last = last["response"]
        assert last["error"]["code"] == "cancelled"
        await h.d.until(lambda w: len(w.cancels) == 1)
        assert await h.router.door.drained(DEADLINE_S)
        assert (await cancel(h, name)).status_code == 404

    in_house(texts, test)


def test_a_plain_answer_becomes_an_error(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.gate.clear()
        headers = {"x-request-id": "mine/1"}
        asking = asyncio.create_task(h.http.post("/v1/completions", json=body(), headers=headers))
        await h.p.until(lambda w: len(w.attempts) == 1)
        assert (await cancel(h, "mine/1")).json()["id"] == h.p.attempts[0].request_id
        answer = await asking
        assert (answer.status_code, answer.json()["error"]["code"]) == (499, "cancelled")
        assert answer.json()["error"]["type"] == "cancelled_error"

    in_house(texts, test)


def test_all_prompts_of_a_request_end_with_it(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.d.gate.clear()
        request = body(prompt=[PROMPT, PROMPT[1:], PROMPT[2:]])
        headers = {"x-request-id": "three"}
        asking = asyncio.create_task(h.http.post("/v1/completions", json=request, headers=headers))
        await h.d.until(lambda w: len(w.attempts) == 3)
        assert (await cancel(h, "three")).status_code == 200
        assert (await asking).status_code == 499
        assert await h.router.door.drained(DEADLINE_S)

    in_house(texts, test)


def test_a_name_of_two_requests_ends_neither(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.gate.clear()
        headers = {"x-request-id": "same"}
        asking = [
            asyncio.create_task(h.http.post("/v1/completions", json=body(), headers=headers))
            for _ in range(2)
        ]
        await h.p.until(lambda w: len(w.attempts) == 2)
        refused = await cancel(h, "same")
        assert refused.status_code == 409
        assert refused.json()["error"]["code"] == "ambiguous_request_id"
        assert (await cancel(h, h.p.attempts[0].request_id)).status_code == 200
        assert (await cancel(h, "same")).status_code == 200, "now it means one"
        assert [(await a).status_code for a in asking] == [499, 499]

    in_house(texts, test)


def test_what_does_not_run_here_is_not_found(texts: Texts) -> None:
    async def test(h: House) -> None:
        done = (await h.http.post("/v1/completions", json=body(max_tokens=2))).json()["id"]
        for name in (done, "nothing", "a/b", "%00", "x" * 2000):
            response = await cancel(h, name)
            assert response.status_code == 404
            assert response.json()["error"]["code"] == "request_not_found"

    in_house(texts, test)


def test_a_request_that_waits_for_a_worker_can_be_cancelled(texts: Texts) -> None:
    async def test(h: House) -> None:
        headers = {"x-request-id": "waits"}
        asking = asyncio.create_task(h.http.post("/v1/completions", json=body(), headers=headers))
        async with asyncio.timeout(DEADLINE_S):
            while (await cancel(h, "waits")).status_code != 200:
                continue
        assert (await asking).status_code == 499

    in_house(texts, test, prefill=0)


def test_a_key_ends_its_own_requests_and_nobody_else_s(texts: Texts, tmp_path: Path) -> None:
    """Whatever they are called: another's request is as if it were not there."""
    mine, my_record = make_key("me")
    other, other_record = make_key("other")
    settings = file_settings(tmp_path / "tenants.db")

    async def run() -> None:
        async with keyed_house(texts, settings, my_record, other_record) as h:
            h.p.gate.clear()
            named = bearer(mine) | {"x-request-id": "name"}
            asking = asyncio.create_task(h.http.post("/v1/completions", json=body(), headers=named))
            await h.p.until(lambda w: len(w.attempts) == 1)
            own_id = h.p.attempts[0].request_id
            for key, name, status in (
                (other, "name", 404),
                (other, own_id, 404),
                ("none", own_id, 401),
                (mine, "name", 200),
            ):
                path = f"/v1/requests/{name}/cancel"
                assert (await h.http.post(path, headers=bearer(key))).status_code == status
            assert (await asking).status_code == 499

    asyncio.run(run())
