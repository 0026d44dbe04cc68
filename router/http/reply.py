"""Answers whose status waits for the work behind them, and that end the work when the client goes.

    work until its first result or its error       nothing sent yet
    -> error: a whole answer with its status       -> result: 200 and what there is
    an error later: one error event, the end       client gone at any time: the work is cancelled
    client connected but not reading: as if gone

Cancelling the work closes its generators, which cancels both legs on the workers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import aclosing
from typing import Any

from fastapi import Response
from fastapi.responses import JSONResponse
from starlette.types import Message, Receive, Scope, Send

from core.errors import TandemError
from router.http.direct_send import SendPiece, as_messages, piece_sender
from router.http.errors import error_event, error_response, hidden_bug

log = logging.getLogger(__name__)

SEND_TIMEOUT_S = 60.0
"""For a client to make room for more: its request holds a place in the house until then."""


class StreamReply(Response):
    """Server-sent events. `frames` yields whole `data: ...` events, ready to be sent."""

    def __init__(
        self,
        frames: AsyncGenerator[bytes, None],
        headers: Mapping[str, str],
        *,
        on_error: Callable[[TandemError], bytes] = error_event,
        send_timeout_s: float = SEND_TIMEOUT_S,
    ) -> None:
        """`on_error` is the last event of an answer that fails after its first."""
        super().__init__(
            headers={"cache-control": "no-cache", "x-accel-buffering": "no", **headers},
            media_type="text/event-stream",
        )
        # The length is not known; without this header the server sends chunks.
        del self.headers["content-length"]
        self._frames = frames
        self._on_error = on_error
        self._send_timeout_s = send_timeout_s
        self._error_headers = dict(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watched = WatchedSend(send, piece_sender(scope, send))
        work = self._run(scope, receive, watched)
        await until_disconnect(receive, work, watched.stalled(self._send_timeout_s))

    async def _run(self, scope: Scope, receive: Receive, send: WatchedSend) -> None:
        async with aclosing(self._frames) as frames:
            try:
                first = await anext(frames)
            except TandemError as error:
                await error_response(error, self._error_headers)(scope, receive, send)
                return
            start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
            await send(start)
            await send.piece(first)
            await self._send_rest(frames, send)

    async def _send_rest(self, frames: AsyncGenerator[bytes, None], send: WatchedSend) -> None:
        last = b""
        try:
            async for frame in frames:
                await send.piece(frame)
        except TandemError as error:
            last = self._on_error(error)
        except Exception:
            # The status has long been sent, so nobody above us could tell the client any more.
            await self._end(send, self._on_error(hidden_bug()))
            raise
        await self._end(send, last)

    async def _end(self, send: Send, last: bytes) -> None:
        await send({"type": "http.response.body", "body": last, "more_body": False})


class PlainReply(Response):
    """One JSON object, when it is complete."""

    def __init__(
        self, result: Callable[[], Awaitable[dict[str, object]]], headers: Mapping[str, str]
    ) -> None:
        super().__init__(headers=headers)
        self._result = result
        self._plain_headers = dict(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await until_disconnect(receive, self._run(scope, receive, send))

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        response: Response
        try:
            response = JSONResponse(await self._result(), headers=self._plain_headers)
        except TandemError as error:
            response = error_response(error, self._plain_headers)
        await response(scope, receive, send)


class WatchedSend:
    """`send`, and since when its client has not taken what was sent last.

    One look at the clock a message, and one timer an answer.
    """

    def __init__(self, send: Send, send_piece: SendPiece | None = None) -> None:
        """`send_piece`: where pieces go, if not to `send` as messages."""
        self._send = send
        self._send_piece = send_piece or as_messages(send)
        self._loop = asyncio.get_running_loop()
        self._waiting_since: float | None = None

    async def __call__(self, message: Message) -> None:
        self._waiting_since = self._loop.time()
        await self._send(message)
        self._waiting_since = None

    async def piece(self, piece: bytes) -> None:
        """A piece of the body of an answer whose head was sent."""
        self._waiting_since = self._loop.time()
        await self._send_piece(piece)
        self._waiting_since = None

    async def stalled(self, timeout_s: float) -> None:
        """Returns when one send has taken that long."""
        left_s = timeout_s
        while left_s > 0:
            await asyncio.sleep(left_s)
            left_s = timeout_s
            if self._waiting_since is not None:
                left_s -= self._loop.time() - self._waiting_since
        log.info("a client has not read for %g s: its answer ends here", timeout_s)


async def until_disconnect(
    receive: Receive, work: Coroutine[Any, Any, None], *ends: Coroutine[Any, Any, None]
) -> None:
    """Runs `work`; cancels it when the client disconnects, one of `ends` returns or we are.

    The body has been read before, so all that can still arrive is the disconnect. `work` keeps to
    the request's deadline by itself.
    """
    working = asyncio.create_task(work)
    others = [asyncio.create_task(end) for end in (_disconnected(receive), *ends)]
    tasks = {working, *others}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    if not working.cancelled():
        working.result()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        continue
