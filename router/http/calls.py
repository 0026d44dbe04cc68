"""What every HTTP request passes: on its way in, whose key it has; out, how its limits stand."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from core.errors import TandemError
from router.http.errors import error_response
from router.tenants.call import enter_call
from router.tenants.gatekeeper import Gatekeeper


class CallMiddleware:
    """Refuses before a body is read; each request is a task of its own, whose call this sets."""

    def __init__(self, app: ASGIApp, *, gatekeeper: Gatekeeper) -> None:
        self._app = app
        self._gatekeeper = gatekeeper

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        try:
            call = await self._gatekeeper.admit(
                scope["path"], headers.get("authorization"), headers.get("x-request-deadline-ms")
            )
        except TandemError as error:
            await error_response(error)(scope, receive, send)
            return
        enter_call(call)
        if call.key is None:
            await self._app(scope, receive, send)
            return

        async def send_with_limits(message: Message) -> None:
            if message["type"] == "http.response.start" and call.answer_headers:
                MutableHeaders(scope=message).update(call.answer_headers)
            await send(message)

        await self._app(scope, receive, send_with_limits)
