"""Bodies of all requests together take no more than there is room for."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from fakes_house import MODEL, Texts, house
from starlette.types import Message, Receive, Scope, Send

from core.errors import OverloadedError
from router.http import app as app_module
from router.http.body_room import UPLOADS, BodyRoom


class Reader:
    """An application that holds what it has read until it is told to end."""

    def __init__(self) -> None:
        self.has_read = asyncio.Event()
        self.may_end = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["more_body"]:
            continue
        self.has_read.set()
        await self.may_end.wait()


async def nowhere(message: Message) -> None:
    raise AssertionError(message)


def sending(*sizes: int) -> Receive:
    pieces = iter(sizes)
    left = len(sizes)

    async def receive() -> Message:
        nonlocal left
        left -= 1
        return {"type": "http.request", "body": b"x" * next(pieces), "more_body": left > 0}

    return receive


def posted(path: str = "/v1/completions") -> Scope:
    return {"type": "http", "path": path}


def test_what_a_request_sent_takes_room_until_its_answer_has_ended() -> None:
    async def run() -> None:
        reader = Reader()
        room = BodyRoom(reader, max_bytes=100)
        first = asyncio.create_task(room(posted(), sending(30, 30), nowhere))
        await reader.has_read.wait()
        with pytest.raises(OverloadedError):
            await room(posted(), sending(20, 21), nowhere)
        reader.may_end.set()
        await room(posted(), sending(40), nowhere)
        await first
        await room(posted(), sending(50, 50), nowhere)
        with pytest.raises(OverloadedError):
            await room(posted(), sending(101), nowhere)
        await room(posted(UPLOADS), sending(101), nowhere)

    asyncio.run(run())


def test_a_body_without_room_is_a_429_and_the_next_one_is_served(
    texts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_module, "LARGEST_BODIES", 0.5)
    overrides: dict[str, dict[str, object]] = {"router": {"max_body_bytes": 1000}}

    async def status(http: httpx.AsyncClient, length: int) -> int:
        body = {"model": MODEL, "prompt": "x" * length, "max_tokens": 1}
        response = await http.post("/v1/completions", json=body)
        return response.status_code

    async def run() -> list[int]:
        async with house(texts, overrides=overrides) as h:
            return [await status(h.http, length) for length in (100, 600, 100, 1200)]

    assert asyncio.run(run()) == [200, 429, 200, 413]
