"""Hears of every request when it enters and when it leaves; tells whoever wants to know.

    begin     the request has a record, and a place in a trace if it is traced
    entered   it is in the house
    refused   it never was
    left      its record is complete: metrics, a span tree, a log line, a place in the ring

While it is served nothing happens here: everything is told from the timeline afterwards.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from core.clock import Clock
from core.errors import TandemError
from core.request import AttemptDone, Phase
from core.trace_context import TraceContext, is_sampled, new_span_id, new_trace_id
from core.tracing import Tracing, wall_offset_ns
from router.life.served_life import ServedLife
from router.life.timeline import RequestTimeline
from router.metrics import RouterMetrics
from router.observe.origin import Origin
from router.observe.request_record import RequestRecord
from router.observe.request_ring import RequestRing
from router.observe.request_spans import asked_attributes, request_spans
from router.observe.request_window import EndedRequest, RequestWindow, ServiceLevel
from router.request_spec import ChatPrompt, RequestSpec
from router.tenants.call import Call

log = logging.getLogger(__name__)

_UNREMARKABLE = frozenset({"finished", "cancelled"})


@dataclass(frozen=True, slots=True)
class ObserverSettings:
    """What an operator wants to see."""

    model: str
    log_requests: bool
    trace_sample_ratio: float
    ring_size: int
    level: ServiceLevel


class Observer:
    """Lives on one event loop."""

    def __init__(
        self,
        tracing: Tracing,
        metrics: RouterMetrics,
        clock: Clock,
        settings: ObserverSettings,
    ) -> None:
        self.ring = RequestRing(settings.ring_size)
        self.window = RequestWindow(settings.level, clock.now())
        self._tracing = tracing
        self._metrics = metrics
        self._clock = clock
        self._settings = settings

    def begin(
        self,
        request_id: str,
        spec: RequestSpec,
        origin: Origin,
        timeline: RequestTimeline,
        call: Call,
    ) -> RequestRecord:
        """A record of a request that has just arrived, in the task that will serve it."""
        trace, parent_id = self._place(origin.trace)
        record = RequestRecord(
            request_id=request_id,
            client_id=origin.client_id,
            operation="chat" if isinstance(spec.prompt, ChatPrompt) else "text_completion",
            model=self._settings.model,
            timeline=timeline,
            wall_offset_ns=wall_offset_ns(self._clock.now()),
            tenant=call.tenant or spec.tenant,
            priority_class=call.priority_class.value,
            trace=trace,
            parent_span_id=parent_id,
            asked=asked_attributes(spec) if trace is not None and trace.sampled else {},
        )
        if origin.log is not None:
            origin.log.request_id = request_id
            origin.log.trace_id = record.trace_id
            origin.log.tenant = record.tenant
        return record

    def entered(self, record: RequestRecord) -> None:
        """Followed by exactly one `left`."""
        self.ring.entered(record)

    def left(self, record: RequestRecord, outcome: str, life: ServedLife | None) -> None:
        record.end(outcome, life)
        self._metrics.finished(record, life)
        self.window.ended(_ended(record), self._clock.now())
        self._tell(record)

    def refused(self, record: RequestRecord, error: TandemError) -> None:
        """Instead of `entered` and `left`."""
        record.end(error.code, None)
        self._metrics.refused(error.code)
        self.window.refused(self._clock.now())
        self._tell(record)

    def _tell(self, record: RequestRecord) -> None:
        if record.timeline.finished is None:
            record.timeline.finished = self._clock.now()
        self.ring.ended(record)
        if self._settings.log_requests or record.outcome not in _UNREMARKABLE:
            _log(record)
        if record.trace is not None and record.trace.sampled and self._tracing.enabled:
            for span in request_spans(record, record.trace):
                self._tracing.emit(span)

    def leg_done(self, phase: Phase, done: AttemptDone) -> None:
        self.ring.leg_done(phase, done)

    def _place(self, caller: TraceContext | None) -> tuple[TraceContext | None, str | None]:
        """The request's own span, and its parent. Without tracing a client's trace is still told to
        workers and logs, of whose lines it is a part."""
        if caller is not None:
            own = caller.below(new_span_id()) if self._tracing.enabled else caller
            return own, caller.span_id
        if not self._tracing.enabled:
            return None, None
        trace_id = new_trace_id()
        sampled = is_sampled(trace_id, self._settings.trace_sample_ratio)
        return TraceContext(trace_id, new_span_id(), sampled), None


def _ended(record: RequestRecord) -> EndedRequest:
    return EndedRequest(
        ttft_s=record.timeline.timings().ttft_s,
        tpot_s=record.tpot_s,
        finished=record.outcome == "finished",
        cancelled=record.outcome == "cancelled",
        num_output_tokens=record.num_output_tokens,
        num_retries=record.num_retries,
    )


def _log(record: RequestRecord) -> None:
    timings = record.timeline.timings()
    ttft = "none" if timings.ttft_s is None else f"{1e3 * timings.ttft_s:.0f} ms"
    total = 0.0 if timings.total_s is None else timings.total_s
    log.info(
        "request %s %s: %d + %d tokens, first after %s, %.3f s, %d attempts, on %s and %s",
        record.request_id,
        record.outcome,
        record.num_prompt_tokens,
        record.num_output_tokens,
        ttft,
        total,
        len(record.timeline.attempts),
        record.prefill_worker or "nobody",
        record.decode_worker or "nobody",
        extra={
            "request_id": record.request_id,
            "trace_id": record.trace_id,
            "tenant": record.tenant,
            "worker": record.decode_worker,
        },
    )
