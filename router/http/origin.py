"""Notes of every HTTP request who asks, before anything else looks at it."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from router.observe.origin import enter_origin

_HEADERS = (b"x-request-id", b"traceparent", b"tracestate")


class OriginMiddleware:
    """Each request is a task of its own, whose origin this sets."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            found = {name: value for name, value in scope["headers"] if name in _HEADERS}
            enter_origin(*(_text(found.get(name)) for name in _HEADERS))
        await self._app(scope, receive, send)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode("latin-1")
