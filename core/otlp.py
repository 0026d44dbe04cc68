"""Spans to an OpenTelemetry collector, over OTLP.

They wait in a bounded queue, and a thread of the SDK sends batches: nobody waits for a collector,
and one that is slow or away costs spans only.
"""

from __future__ import annotations

import threading

from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (
    OTLPSpanExporter as GrpcExporter,
)
from opentelemetry.exporter.otlp.proto.http.trace_exporter import (
    OTLPSpanExporter as HttpExporter,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from core.config import ObservabilityConfig
from core.release import RELEASE
from core.trace_context import TraceContext
from core.tracing import Span

SCOPE = "tandem"
EXPORT_TIMEOUT_S = 5.0
"""For one batch; the thread that waits is the exporter's own."""
EXPORT_DELAY_S = 1.0
"""Spans are sent at the latest after this, with whatever came meanwhile."""
MAX_QUEUED_SPANS = 8192
"""About 10 MB; beyond that the oldest are dropped."""
HTTP_PATH = "/v1/traces"


class OtlpTracing:
    """A `Tracing` to one exporter."""

    enabled = True

    def __init__(self, exporter: SpanExporter, *, service: str, instance: str) -> None:
        resource = Resource.create(
            {
                "service.name": service,
                "service.version": RELEASE,
                "service.instance.id": instance,
            }
        )
        self._ids = _ChosenIds()
        provider = TracerProvider(
            sampler=ALWAYS_ON,  # who is kept was decided where the trace began
            resource=resource,
            id_generator=self._ids,
            shutdown_on_exit=False,
        )
        provider.add_span_processor(
            BatchSpanProcessor(
                exporter,
                max_queue_size=MAX_QUEUED_SPANS,
                schedule_delay_millis=1e3 * EXPORT_DELAY_S,
            )
        )
        self._tracer = provider.get_tracer(SCOPE, RELEASE)
        self._provider: TracerProvider | None = provider

    def emit(self, span: Span) -> None:
        if not span.context.sampled or self._provider is None:
            return
        self._ids.choose(span.context)
        made = self._tracer.start_span(
            span.name,
            context=_parent_of(span),
            kind=api.SpanKind.SERVER if span.serves else api.SpanKind.INTERNAL,
            attributes=span.attributes,
            links=[api.Link(_span_context(span.context.below(each))) for each in span.links],
            start_time=span.start_ns,
        )
        for event in span.events:
            made.add_event(event.name, event.attributes, event.at_ns)
        if span.error is not None:
            made.set_status(api.Status(api.StatusCode.ERROR, span.error))
        made.end(max(span.start_ns, span.end_ns))

    def close(self, timeout_s: float) -> None:
        provider, self._provider = self._provider, None
        if provider is None:
            return
        # In a thread, since the SDK would wait for half a minute.
        closing = threading.Thread(target=provider.shutdown, name="tandem-traces", daemon=True)
        closing.start()
        closing.join(timeout_s)


class _ChosenIds(IdGenerator):
    """Gives each thread the ids that it chose just before."""

    def __init__(self) -> None:
        self._chosen = threading.local()

    def choose(self, context: TraceContext) -> None:
        self._chosen.context = context

    def generate_span_id(self) -> int:
        return int(self._chosen.context.span_id, 16)

    def generate_trace_id(self) -> int:
        return int(self._chosen.context.trace_id, 16)


def make_exporter(settings: ObservabilityConfig) -> SpanExporter:
    """To `settings.otlp_endpoint`. Headers come from OTEL_EXPORTER_OTLP_HEADERS, as everywhere."""
    assert settings.otlp_endpoint is not None
    endpoint = settings.otlp_endpoint.rstrip("/")
    if settings.otlp_protocol == "http":
        path = "" if endpoint.endswith(HTTP_PATH) else HTTP_PATH
        return HttpExporter(endpoint + path, timeout=EXPORT_TIMEOUT_S)
    is_plain = not endpoint.startswith("https://")
    return GrpcExporter(endpoint, insecure=is_plain, timeout=EXPORT_TIMEOUT_S)


def _span_context(context: TraceContext) -> api.SpanContext:
    return api.SpanContext(
        trace_id=int(context.trace_id, 16),
        span_id=int(context.span_id, 16),
        is_remote=True,
        trace_flags=api.TraceFlags(api.TraceFlags.SAMPLED),
        trace_state=api.TraceState.from_header([context.state]) if context.state else None,
    )


def _parent_of(span: Span) -> Context:
    """An empty context begins a trace."""
    if span.parent_id is None:
        return Context()
    parent = api.NonRecordingSpan(_span_context(span.context.below(span.parent_id)))
    return api.set_span_in_context(parent, Context())
