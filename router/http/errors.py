"""Errors in OpenAI's shape, as a whole answer or inside a stream that has already begun."""

from __future__ import annotations

import json
import logging
import math

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from core.errors import (
    AuthenticationError,
    BadRequestError,
    QuotaError,
    TandemError,
    UnavailableError,
)
from router.identifiers import echoed_request_id, new_request_id

log = logging.getLogger(__name__)

TYPES = {
    408: "timeout_error",
    429: "rate_limit_error",
    499: "cancelled_error",
    503: "service_unavailable_error",
}


def error_body(error: TandemError) -> dict[str, object]:
    """`{"error": {message, type, param, code}}`."""
    param = error.param if isinstance(error, BadRequestError) else None
    return _body(error.message, error.http_status, param, error.code)


def error_response(error: TandemError, headers: dict[str, str] | None = None) -> Response:
    """The answer to a request that failed before anything was sent."""
    headers = dict(headers or {})
    if isinstance(error, UnavailableError):
        headers["retry-after"] = str(max(1, math.ceil(error.retry_after_s)))
    if isinstance(error, AuthenticationError):
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error_body(error), status_code=error.http_status, headers=headers)


def error_event(error: TandemError) -> bytes:
    """The last event of a stream that failed midway."""
    return b"data: " + json.dumps(error_body(error)).encode() + b"\n\n"


def install_error_handlers(app: FastAPI) -> None:
    """Every error that leaves an endpoint gets the same shape."""
    app.add_exception_handler(TandemError, _on_tandem_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_bug)


async def _on_tandem_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, TandemError)
    client_id = request.headers.get("x-request-id")
    return error_response(error, {"x-request-id": echoed_request_id(client_id, new_request_id())})


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    body = _body(f"{error.detail}: {request.method} {request.url.path}", error.status_code, None)
    return JSONResponse(body, status_code=error.status_code, headers=error.headers)


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """Nobody will read it."""
    return Response(status_code=499)


async def _on_bug(request: Request, error: Exception) -> Response:
    """The server logs the traceback after this; the client learns no details."""
    return JSONResponse(_body("internal error", 500, None, TandemError.code), status_code=500)


def _body(
    message: str, status: int, param: str | None, code: str | None = None
) -> dict[str, object]:
    fallback = "invalid_request_error" if status < 500 else "server_error"
    # OpenAI's clients tell the two kinds of 429 apart by this.
    kind = QuotaError.code if code == QuotaError.code else TYPES.get(status, fallback)
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
