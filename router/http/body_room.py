"""How much of clients' bodies may be here at once, from the first byte until the answer has ended.

One body is bounded, and so are the requests in the house; but all of them at their largest, and
those whose clients are still sending, would be more than any machine has.
"""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.errors import OverloadedError

UPLOADS = "/v1/files"
"""What is posted there goes to the disk as it comes."""


class BodyRoom:
    """Whoever sends more than there is room for meets OverloadedError when its body is read."""

    def __init__(self, app: ASGIApp, *, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes
        self._num_bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == UPLOADS:
            await self._app(scope, receive, send)
            return
        own = 0

        async def counted() -> Message:
            nonlocal own
            message = await receive()
            size = len(message.get("body", b""))
            own += size
            self._num_bytes += size
            if size and self._num_bytes > self._max_bytes:
                raise OverloadedError(
                    "the bodies of other requests take all the room there is", reason="saturated"
                )
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._num_bytes -= own
