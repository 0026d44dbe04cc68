"""What every gRPC call passes first: whose it is, by its metadata `authorization`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio

from core.errors import TandemError
from router.rpc.errors import Context, abort
from router.tenants.call import enter_call
from router.tenants.gatekeeper import Gatekeeper

OPEN_SERVICES = ("/grpc.health.", "/grpc.reflection.")

Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


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
