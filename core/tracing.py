"""Finished spans, and where they go: nowhere, or to an OpenTelemetry collector.

A span is made when what it tells of is over, with the times and the id that it has by then: while a
request is served, nothing of it exists but a few numbers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from core.config import ObservabilityConfig
from core.trace_context import TraceContext

Value: TypeAlias = str | bool | int | float | Sequence[str]


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """A moment within a span. Nanoseconds since the epoch."""

    name: str
    at_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One span that is over. Times are nanoseconds since the epoch."""

    name: str
    context: TraceContext
    """Its own id is `context.span_id`."""
    parent_id: str | None
    start_ns: int
    end_ns: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    events: Sequence[SpanEvent] = ()
    links: Sequence[str] = ()
    """Ids of related spans of the same trace."""
    error: str | None = None
    """What went wrong; None: nothing did."""
    serves: bool = False
    """It answers a caller outside of this process."""


class Tracing(Protocol):
    """Where spans go."""

    @property
    def enabled(self) -> bool: ...

    def emit(self, span: Span) -> None:
        """Queues it and returns at once; drops one that is not sampled. Thread-safe."""
        ...

    def close(self, timeout_s: float) -> None:
        """Sends what is queued, for at most `timeout_s`; nothing is taken any more. Idempotent."""
        ...


class NoTracing:
    """Without an endpoint."""

    enabled = False

    def emit(self, span: Span) -> None:
        return

    def close(self, timeout_s: float) -> None:
        return


def make_tracing(settings: ObservabilityConfig, *, service: str, instance: str) -> Tracing:
    """What the settings ask for. `instance` tells the processes of a service apart."""
    if settings.otlp_endpoint is None:
        return NoTracing()
    from core.otlp import OtlpTracing, make_exporter  # 0.3 s, for who wants it

    return OtlpTracing(make_exporter(settings), service=service, instance=instance)


def wall_offset_ns(now_s: float) -> int:
    """What is added to moments of a clock that says `now_s` now, to be nanoseconds of the epoch."""
    return time.time_ns() - round(now_s * 1e9)
