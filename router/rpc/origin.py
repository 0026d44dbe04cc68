"""Notes of every gRPC call who asks, by its metadata, before anything else looks at it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio

from router.observe.origin import enter_origin

_KEYS = ("x-request-id", "traceparent", "tracestate")

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class OriginInterceptor(grpc.aio.ServerInterceptor):
    """Runs in the task of the handler, whose origin it sets."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        metadata = dict(handler_call_details.invocation_metadata or ())
        enter_origin(*(_text(metadata.get(key)) for key in _KEYS))
        return await continuation(handler_call_details)


def _text(value: str | bytes | None) -> str | None:
    return value.decode("latin-1") if isinstance(value, bytes) else value
