"""Every answer says under which `x-request-id` it was given: the client's own, or ours."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from router.identifiers import echoed_request_id, new_request_id

HEADER = "x-request-id"


class RequestIds:
    """Names answers that don't name themselves: errors, models, health, unknown paths."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if HEADER not in headers:
                    client_id = Headers(scope=scope).get(HEADER)
                    headers[HEADER] = echoed_request_id(client_id, new_request_id())
            await send(message)

        await self._app(scope, receive, named)
