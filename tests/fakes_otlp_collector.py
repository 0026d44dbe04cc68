"""An OpenTelemetry collector in this process: real gRPC and HTTP servers that keep all they get."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

WAIT_S = 30.0


@dataclass(frozen=True)
class Seen:
    """A span as it arrived, with the service that sent it."""

    service: str
    instance: str
    span: Span

    @property
    def name(self) -> str:
        return self.span.name

    @property
    def id(self) -> str:
        return self.span.span_id.hex()

    @property
    def parent_id(self) -> str:
        return self.span.parent_span_id.hex()

    @property
    def trace_id(self) -> str:
        return self.span.trace_id.hex()

    @property
    def failed(self) -> bool:
        return self.span.status.code == Status.STATUS_CODE_ERROR

    @property
    def attributes(self) -> dict[str, object]:
        return values_of(self.span.attributes)

    @property
    def links(self) -> list[str]:
        return [link.span_id.hex() for link in self.span.links]


@dataclass
class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps spans until they are asked for. Thread-safe."""

    spans: list[Seen] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._changed = threading.Condition()
        self.open = threading.Event()
        """Cleared: requests are taken and not answered."""
        self.open.set()

    def take(self, request: pb.ExportTraceServiceRequest) -> None:
        self.open.wait(WAIT_S)
        with self._changed:
            for resource in request.resource_spans:
                about = values_of(resource.resource.attributes)
                for scope in resource.scope_spans:
                    self.spans += [
                        Seen(str(about["service.name"]), str(about["service.instance.id"]), span)
                        for span in scope.spans
                    ]
            self._changed.notify_all()

    def until(self, condition: Callable[[list[Seen]], bool]) -> list[Seen]:
        """All spans, once they meet the condition."""
        with self._changed:
            met = self._changed.wait_for(lambda: condition(self.spans), WAIT_S)
            assert met, [seen.name for seen in self.spans]
            return list(self.spans)

    def Export(
        self, request: pb.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> pb.ExportTraceServiceResponse:
        self.take(request)
        return pb.ExportTraceServiceResponse()


@contextlib.contextmanager
def grpc_collector() -> Iterator[tuple[Collector, str]]:
    """A collector and its endpoint."""
    collector = Collector()
    server = grpc.server(ThreadPoolExecutor(4))
    add = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector, f"http://127.0.0.1:{port}"
    finally:
        collector.open.set()
        server.stop(None).wait(WAIT_S)


@contextlib.contextmanager
def http_collector() -> Iterator[tuple[Collector, str]]:
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            collector.headers.append(dict(self.headers))
            body = self.rfile.read(int(self.headers["content-length"]))
            collector.take(pb.ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector, f"http://127.0.0.1:{server.server_port}"
    finally:
        collector.open.set()
        server.shutdown()
        server.server_close()
        thread.join(WAIT_S)


def values_of(attributes: object) -> dict[str, object]:
    found: dict[str, object] = {}
    for attribute in attributes:  # type: ignore[attr-defined]
        assert isinstance(attribute, KeyValue)
        found[attribute.key] = _value(attribute.value)
    return found


def _value(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in value.array_value.values]
    return getattr(value, kind or "string_value")
