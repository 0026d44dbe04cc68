"""What every gRPC call passes first: whose it is, by its metadata `authorization`."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn, TypeAlias

import grpc
import grpc.aio

from core.errors import BadRequestError, TandemError, UnavailableError
from router.tenants.call import enter_call
from router.tenants.gatekeeper import Gatekeeper

STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    503: grpc.StatusCode.UNAVAILABLE,
}

OPEN_SERVICES = ("/grpc.health.", "/grpc.reflection.")

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Context = grpc.aio.ServicerContext[Any, Any]


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Runs in the task of the handler, whose call it sets; a refused call gets a handler that ends
    it. Health and reflection are open."""

    def __init__(self, gatekeeper: Gatekeeper) -> None:
        self._gatekeeper = gatekeeper

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        method = handler_call_details.method
        handler = await continuation(handler_call_details)
        if handler is None or method.startswith(OPEN_SERVICES):
            return handler
        metadata = dict(handler_call_details.invocation_metadata or ())
        try:
            enter_call(await self._gatekeeper.admit(method, _text(metadata.get("authorization"))))
        except TandemError as error:
            return _refusing(handler, error)
        return handler


async def abort(context: Context, error: TandemError) -> NoReturn:
    """Ends the call with the error's status, and its details in the trailing metadata."""
    param = error.param if isinstance(error, BadRequestError) else None
    metadata = [("tandem-code", error.code), ("tandem-param", param or "")]
    if isinstance(error, UnavailableError):
        metadata += [
            ("tandem-reason", error.reason),
            ("retry-after", str(max(1, math.ceil(error.retry_after_s)))),
        ]
    code = STATUS.get(error.http_status, grpc.StatusCode.INTERNAL)
    await context.abort(code, error.message, trailing_metadata=tuple(metadata))


def _refusing(handler: Handler, error: TandemError) -> Handler:
    """Of the same kind as the one it stands for."""

    async def refuse(_request: object, context: Context) -> object:
        await abort(context, error)

    async def refuse_stream(_request: object, context: Context) -> AsyncIterator[object]:
        await abort(context, error)
        yield  # never reached: it makes this a generator

    match handler.request_streaming, handler.response_streaming:
        case False, False:
            return grpc.unary_unary_rpc_method_handler(refuse)
        case False, True:
            return grpc.unary_stream_rpc_method_handler(refuse_stream)
        case True, False:
            return grpc.stream_unary_rpc_method_handler(refuse)
        case _:
            return grpc.stream_stream_rpc_method_handler(refuse_stream)


def _text(value: str | bytes | None) -> str | None:
    return value.decode("latin-1") if isinstance(value, bytes) else value
