"""Who asks, as the protocol's headers tell: the client's name for the request, and its trace."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

from core.log_context import LogContext, enter_log_context
from core.trace_context import TraceContext, parse_headers
from router.identifiers import echoed_request_id


@dataclass(frozen=True, slots=True)
class Origin:
    """Of one call, which may hold several requests."""

    client_id: str = ""
    """The client's `x-request-id`, made harmless; clients may share one."""
    trace: TraceContext | None = None
    """The client's span, if it sent one."""
    log: LogContext | None = None
    """Of this call's task."""


_NOBODY = Origin()
_CURRENT: ContextVar[Origin] = ContextVar("tandem_origin", default=_NOBODY)


def enter_origin(request_id: str | None, traceparent: str | None, tracestate: str | None) -> None:
    """From now on `current_origin`, for this task and those it starts."""
    origin = Origin(
        client_id=echoed_request_id(request_id, ""),
        trace=None if traceparent is None else parse_headers(traceparent, tracestate),
        log=enter_log_context(),
    )
    _CURRENT.set(origin)


def current_origin() -> Origin:
    return _CURRENT.get()
