"""The public gRPC server: the API with health and reflection, its limits and its keep-alive."""

from __future__ import annotations

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from protos import inference_pb2 as pb
from protos import inference_pb2_grpc
from protos.certificate_files import CertificateFiles, FrontTls
from protos.health import Health
from protos.secure_grpc import Options, bind_front
from router.door import Door
from router.rpc.calls import CallInterceptor
from router.rpc.origin import OriginInterceptor
from router.rpc.service import InferenceService
from router.tenants.gatekeeper import Gatekeeper

SERVICE = pb.DESCRIPTOR.services_by_name["Inference"].full_name
HEALTH_PERIOD_S = 0.5
CLIENT_PINGS = 5
"""Clients may ping this many times as often as we do; who does more is sent away."""


class GrpcServer:
    """Serves the API with health and reflection. `start` returns once calls are accepted."""

    def __init__(
        self,
        door: Door,
        *,
        host: str,
        port: int,
        max_body_bytes: int,
        keepalive_s: float,
        gatekeeper: Gatekeeper,
        certificates: CertificateFiles[FrontTls] | None = None,
    ) -> None:
        self._gatekeeper = gatekeeper
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._door = door
        self._certificates = certificates
        self._options = server_options(max_body_bytes=max_body_bytes, keepalive_s=keepalive_s)
        self._server: grpc.aio.Server | None = None
        self._health = Health(self._is_ready, HEALTH_PERIOD_S, [SERVICE])

    async def start(self) -> int:
        """Binds and serves; the port that was bound. Raises ConfigError if it is taken."""
        server = grpc.aio.server(
            options=list(self._options),
            interceptors=(OriginInterceptor(), CallInterceptor(self._gatekeeper)),
        )
        inference_pb2_grpc.add_InferenceServicer_to_server(InferenceService(self._door), server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
        reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)
        port = bind_front(server, self._address, self._certificates)
        await server.start()
        self._server = server
        return port

    async def stop(self) -> None:
        """Ends the server, and cancels what still runs on it. Idempotent."""
        if self._server is None:
            return
        self._health.stop()
        await self._server.stop(None)
        self._server = None

    def _is_ready(self) -> bool:
        """As `/ready` says."""
        return not self._door.admission.draining and self._door.fleet.readiness() is None


def server_options(*, max_body_bytes: int, keepalive_s: float) -> Options:
    """A client that is gone without a word (a pulled cable) is noticed by its silence to pings, and
    its calls are cancelled."""
    period_ms = max(1, round(keepalive_s * 1000))
    return (
        ("grpc.max_receive_message_length", max_body_bytes),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", period_ms),
        ("grpc.keepalive_timeout_ms", period_ms),
        # What really ends it: with the timeout above alone, a swallowed ping waits its default 60 s
        # (tried with grpcio 1.85).
        ("grpc.http2.ping_timeout_ms", period_ms),
        # A request may wait long for its first token, with nothing on the wire but pings.
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", period_ms // CLIENT_PINGS),
    )
