"""What log lines of one request have in common: its ids, wherever in its task they are written."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class LogContext:
    """Filled in as it becomes known; empty: not known."""

    request_id: str = ""
    trace_id: str = ""
    tenant: str = ""
    worker: str = ""


_CURRENT: ContextVar[LogContext | None] = ContextVar("tandem_log_context", default=None)


def enter_log_context() -> LogContext:
    """A new one for this task and those it starts from now on."""
    context = LogContext()
    _CURRENT.set(context)
    return context


def current_log_context() -> LogContext | None:
    return _CURRENT.get()
