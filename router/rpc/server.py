"""The public gRPC API on the same door as HTTP, with health and reflection."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import NoReturn

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health_aio
from grpc_reflection.v1alpha import reflection

from core.errors import BadRequestError, TandemError
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc
from protos.certificate_files import CertificateFiles, FrontTls
from protos.secure_grpc import bind_front
from router.door import Door
from router.generation import Generation
from router.rpc.convert import delta_to_wire, spec_of, usage_to_wire
from router.rpc.origin import OriginInterceptor

SERVICE = pb.DESCRIPTOR.services_by_name["Inference"].full_name

STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    503: grpc.StatusCode.UNAVAILABLE,
}

Context = grpc.aio.ServicerContext[pb.CompleteRequest, pb.CompleteEvent]


class InferenceService(inference_pb2_grpc.InferenceServicer):
    """`tandem.inference.v1.Inference`. gRPC cancels the handler when the client ends the call."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def Complete(
        self, request: pb.CompleteRequest, context: Context
    ) -> AsyncIterator[pb.CompleteEvent]:
        received = self._door.clock.now()
        try:
            spec = spec_of(request, timeout_s=context.time_remaining())
            generation = Generation(self._door, spec, received)
            async with aclosing(generation.deltas()) as deltas:
                async for delta in deltas:
                    yield delta_to_wire(delta)
        except TandemError as error:
            await _abort(context, error)
        yield usage_to_wire(generation, include_timings=request.include_timings)

    async def ListModels(
        self, request: pb.ListModelsRequest, context: grpc.aio.ServicerContext[object, object]
    ) -> pb.ListModelsReply:
        settings = self._door.settings
        model = pb.ListModelsReply.Model(id=settings.model, max_model_len=settings.max_model_len)
        return pb.ListModelsReply(models=[model])


async def _abort(context: Context, error: TandemError) -> NoReturn:
    param = error.param if isinstance(error, BadRequestError) else None
    metadata = (("tandem-code", error.code), ("tandem-param", param or ""))
    code = STATUS.get(error.http_status, grpc.StatusCode.INTERNAL)
    await context.abort(code, error.message, trailing_metadata=metadata)


class GrpcServer:
    """Serves the API with health and reflection. `start` returns once calls are accepted."""

    def __init__(
        self,
        door: Door,
        *,
        host: str,
        port: int,
        max_body_bytes: int,
        certificates: CertificateFiles[FrontTls] | None = None,
    ) -> None:
        self._address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._door = door
        self._certificates = certificates
        self._options = (
            ("grpc.max_receive_message_length", max_body_bytes),
            ("grpc.so_reuseport", 0),
        )
        self._server: grpc.aio.Server | None = None
        self._health = health_aio.HealthServicer()

    async def start(self) -> int:
        """Binds and serves; the port that was bound. Raises ConfigError if it is taken."""
        server = grpc.aio.server(options=self._options, interceptors=[OriginInterceptor()])
        inference_pb2_grpc.add_InferenceServicer_to_server(InferenceService(self._door), server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (SERVICE, health_pb2.DESCRIPTOR.services_by_name["Health"].full_name)
        reflection.enable_server_reflection((*names, reflection.SERVICE_NAME), server)
        port = bind_front(server, self._address, self._certificates)
        await server.start()
        self._server = server
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        return port

    async def stop(self) -> None:
        """Ends the server, and cancels what still runs on it. Idempotent."""
        if self._server is None:
            return
        await self._health.enter_graceful_shutdown()
        await self._server.stop(None)
        self._server = None
