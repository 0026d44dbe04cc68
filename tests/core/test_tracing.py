"""Trace contexts from clients, and spans on their way to a collector."""

from __future__ import annotations

import pytest
from fakes_otlp_collector import grpc_collector, http_collector

from core.config import ObservabilityConfig
from core.otlp import MAX_QUEUED_SPANS
from core.trace_context import (
    TraceContext,
    decode_context,
    is_sampled,
    new_span_id,
    new_trace_id,
    parse_headers,
    span_id_of,
)
from core.tracing import NoTracing, Span, SpanEvent, make_tracing

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CONTEXT = TraceContext(TRACE, SPAN, sampled=True)


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (f"00-{TRACE}-{SPAN}-01", True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f" 00-{TRACE}-{SPAN}-01 ", True),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", True),
    ],
)
def test_a_client_s_span_is_found_in_its_headers(header: str, sampled: bool) -> None:
    assert parse_headers(header, "a=1, b=2") == TraceContext(TRACE, SPAN, sampled, "a=1, b=2")


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0g",
        f"00-{TRACE}-{SPAN}-01\n00-{TRACE}-{SPAN}-01",
        "é" * 55,
    ],
)
def test_what_is_no_traceparent_is_ignored(header: str) -> None:
    assert parse_headers(header, None) is None


def test_a_tracestate_that_is_too_long_or_odd_is_dropped_and_the_span_kept() -> None:
    for state in ("x" * 513, "a=é", "a=1\nb=2"):
        assert parse_headers(f"00-{TRACE}-{SPAN}-01", state) == CONTEXT


@pytest.mark.parametrize("state", ["", "vendor=1,other=a b"])
@pytest.mark.parametrize("sampled", [True, False])
def test_a_context_comes_back_from_the_wire_as_it_was(state: str, sampled: bool) -> None:
    context = TraceContext(new_trace_id(), new_span_id(), sampled, state)
    assert decode_context(context.encode()) == context


def test_everybody_finds_the_same_ids_and_keeps_the_same_traces() -> None:
    assert span_id_of("decode", "t1") == span_id_of("decode", "t1") != span_id_of("decode", "t2")
    assert len(span_id_of("decode", "t1")) == 16
    ids = [new_trace_id() for _ in range(2000)]
    assert not any(is_sampled(i, 0.0) for i in ids) and all(is_sampled(i, 1.0) for i in ids)
    assert 400 < sum(is_sampled(i, 0.3) for i in ids) < 800


def span(context: TraceContext = CONTEXT, parent_id: str | None = None, name: str = "it") -> Span:
    return Span(
        name=name,
        context=context,
        parent_id=parent_id,
        start_ns=1_000,
        end_ns=2_500,
        attributes={"gen_ai.usage.input_tokens": 3, "reasons": ("stop", "length")},
        events=(SpanEvent("first_token", 1_700),),
        links=(span_id_of("kv_send", "t"),),
        error="timeout",
        serves=True,
    )


@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_a_span_arrives_as_it_was_told(protocol: str) -> None:
    collectors = {"grpc": grpc_collector, "http": http_collector}
    with collectors[protocol]() as (collector, endpoint):
        settings = ObservabilityConfig.model_validate(
            {"otlp_endpoint": endpoint, "otlp_protocol": protocol}
        )
        tracing = make_tracing(settings, service="tandem-test", instance="me")
        parent = new_span_id()
        tracing.emit(span(TraceContext(TRACE, SPAN, True, "v=1"), parent))
        tracing.emit(span(TraceContext(TRACE, new_span_id(), False), name="not sampled"))
        tracing.emit(span(TraceContext(new_trace_id(), new_span_id(), True), name="root"))
        tracing.close(10.0)
        tracing.emit(span(name="too late"))
        first, root = collector.until(lambda seen: len(seen) == 2)
        assert (first.service, first.instance) == ("tandem-test", "me")
        assert (first.trace_id, first.id, first.parent_id) == (TRACE, SPAN, parent)
        assert (first.span.start_time_unix_nano, first.span.end_time_unix_nano) == (1_000, 2_500)
        assert first.span.trace_state == "v=1"
        assert first.attributes == {
            "gen_ai.usage.input_tokens": 3,
            "reasons": ["stop", "length"],
        }
        assert [(e.name, e.time_unix_nano) for e in first.span.events] == [("first_token", 1_700)]
        assert first.links == [span_id_of("kv_send", "t")]
        assert first.failed and first.span.status.message == "timeout"
        assert (root.name, root.parent_id) == ("root", "")


def test_without_an_endpoint_there_is_no_tracing() -> None:
    tracing = make_tracing(ObservabilityConfig(), service="s", instance="i")
    assert isinstance(tracing, NoTracing) and not tracing.enabled
    tracing.emit(span())
    tracing.close(1.0)


def test_a_collector_that_does_not_answer_holds_nobody_up() -> None:
    with grpc_collector() as (collector, endpoint):
        collector.open.clear()
        settings = ObservabilityConfig(otlp_endpoint=endpoint)
        tracing = make_tracing(settings, service="s", instance="i")
        for _ in range(MAX_QUEUED_SPANS + 1000):  # would never end if it waited for room
            tracing.emit(span())
        tracing.close(0.0)
        collector.open.set()
    assert len(collector.spans) <= MAX_QUEUED_SPANS + 512, "the queue and one batch"
