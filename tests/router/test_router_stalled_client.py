"""A client that keeps its connection and stops reading gets no place in the house for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from starlette.types import Message

from router.http.reply import StreamReply


def test_the_work_behind_an_answer_that_nobody_takes_is_ended() -> None:
    async def run() -> tuple[list[str], bool]:
        never = asyncio.Event()
        sent: list[str] = []
        closed = False

        async def frames() -> AsyncGenerator[bytes, None]:
            nonlocal closed
            try:
                while True:
                    yield b"data: {}\n\n"
            finally:
                closed = True

        async def send(message: Message) -> None:
            sent.append(message["type"])
            if len(sent) > 3:
                await never.wait()

        async def receive() -> Message:
            await never.wait()
            raise AssertionError

        await StreamReply(frames(), {}, send_timeout_s=0.01)({}, receive, send)
        return sent, closed

    sent, closed = asyncio.run(run())
    assert sent == ["http.response.start", *["http.response.body"] * 3]
    assert closed


def test_a_client_that_reads_gets_all_of_it() -> None:
    async def run() -> bytes:
        received: list[bytes] = []

        async def frames() -> AsyncGenerator[bytes, None]:
            for number in range(5):
                yield b"%d" % number

        async def send(message: Message) -> None:
            received.append(message.get("body", b""))

        async def receive() -> Message:
            await asyncio.Event().wait()
            raise AssertionError

        await StreamReply(frames(), {}, send_timeout_s=30.0)({}, receive, send)
        return b"".join(received)

    assert asyncio.run(run()) == b"01234"
