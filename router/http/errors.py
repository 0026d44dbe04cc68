"""Errors in OpenAI's shape, as a whole answer or inside a stream that has already begun."""

from __future__ import annotations

import json
import logging

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from core.errors import (
    AuthenticationError,
    BadRequestError,
    QuotaError,
    TandemError,
    UnavailableError,
)
from router.faults import RETRY_AFTER_S, fault_of
from router.http.request_ids import HEADER
from router.identifiers import echoed_request_id, new_request_id
from state.store import StoreUnavailableError

log = logging.getLogger(__name__)

TYPES = {
    403: "permission_error",
    408: "timeout_error",
    429: "rate_limit_error",
    499: "cancelled_error",
    503: "service_unavailable_error",
}
CODES = {404: "unknown_url", 405: "method_not_allowed"}
"""Of what the routes refuse themselves."""


def error_body(error: TandemError) -> dict[str, object]:
    """`{"error": {message, type, param, code}}`."""
    fault = fault_of(error)
    return _body(fault.message, fault.status, fault.param, fault.code)


def error_response(error: TandemError, headers: dict[str, str] | None = None) -> Response:
    """The answer to a request that failed before anything was sent."""
    fault, headers = fault_of(error), dict(headers or {})
    if fault.retry_after_s is not None:
        headers["retry-after"] = str(fault.retry_after_s)
    if isinstance(error, AuthenticationError):
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error_body(error), status_code=fault.status, headers=headers)


def error_event(error: TandemError) -> bytes:
    """The last event of a stream that failed midway. No `[DONE]` follows: the answer isn't."""
    return b"data: " + json.dumps(error_body(error)).encode() + b"\n\n"


def hidden_bug() -> TandemError:
    """What clients learn of a fault of ours; the log has the rest."""
    return TandemError("internal error")


def install_error_handlers(app: FastAPI) -> None:
    """Every error that leaves an endpoint gets the same shape."""
    app.add_exception_handler(TandemError, _on_tandem_error)
    app.add_exception_handler(StoreUnavailableError, _on_store_away)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_wrong_query)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_bug)


async def _on_tandem_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TandemError)
    return error_response(error)


async def _on_store_away(request: Request, error: Exception) -> Response:
    """Its message is for the operator: it has addresses, and may have credentials in them."""
    log.warning("%s", error)
    return error_response(
        UnavailableError("the store is away", reason="store", retry_after_s=RETRY_AFTER_S)
    )


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    status, path = error.status_code, str(request.scope["path"])
    headers = {name.lower(): value for name, value in (error.headers or {}).items()}
    if status == 405:
        headers["allow"] = ", ".join([*_methods(request), "OPTIONS"])
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=headers)
    body = _body(
        f"{error.detail}: {request.method} {path[:256]}",
        status,
        None,
        CODES.get(status, "invalid_request"),
    )
    return JSONResponse(body, status_code=status, headers=headers)


async def _on_wrong_query(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    fault = error.errors()[0]
    name = str(fault["loc"][-1])
    return error_response(
        BadRequestError(f"'{name}': {fault['msg']}", param=name, code="invalid_type")
    )


def _methods(request: Request) -> list[str]:
    """What the path may be asked with."""
    methods: set[str] = set()
    for route in request.app.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            methods |= getattr(route, "methods", None) or set()
    return sorted(methods)


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """Nobody will read it."""
    return Response(status_code=499)


async def _on_bug(request: Request, error: Exception) -> Response:
    """The server logs the traceback after this; the client learns no details."""
    own = echoed_request_id(request.headers.get(HEADER), new_request_id())
    return error_response(hidden_bug(), {HEADER: own})


def _body(message: str, status: int, param: str | None, code: str) -> dict[str, object]:
    fallback = "invalid_request_error" if status < 500 else "server_error"
    # OpenAI's clients tell the two kinds of 429 apart by this.
    kind = QuotaError.code if code == QuotaError.code else TYPES.get(status, fallback)
    # A template may quote what a client escaped: half a surrogate pair is no UTF-8
    shown = message.encode(errors="replace").decode()
    return {"error": {"message": shown, "type": kind, "param": param, "code": code}}
