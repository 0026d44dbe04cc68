"""The standard gRPC health service of our processes, for probes: `liveness` and `readiness`.

liveness, ""   serving for as long as this answers: a restart would not help a process that is
               stuck on a peer, and would hurt one that drains
readiness      work would be served now: it makes progress, and no drain has begun
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

LIVENESS = "liveness"
READINESS = "readiness"
_LIVE_NAMES = frozenset({"", LIVENESS})

Status = health_pb2.HealthCheckResponse.ServingStatus
Context = grpc.aio.ServicerContext[object, object]


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # it has no types
    """Answers from the state of the moment. `period_s` is between two looks of a watch."""

    def __init__(
        self, is_ready: Callable[[], bool], period_s: float, services: Collection[str] = ()
    ) -> None:
        """`services` are full names of services that are as ready as the process."""
        self._is_ready = is_ready
        self._period_s = period_s
        self._ready_names = frozenset({READINESS, *services})
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Ends the watches, which would hold up the server's stop. Idempotent."""
        self._stopping.set()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        status = self._status(request.service)
        if status == _number("SERVICE_UNKNOWN"):
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r}")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """The status now and whenever it changed. It is looked at in steps: it ages by itself."""
        told = None
        while not self._stopping.is_set():
            status = self._status(request.service)
            if status != told:
                told = status
                yield health_pb2.HealthCheckResponse(status=status)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._period_s)

    def _status(self, service: str) -> int:
        if service in _LIVE_NAMES:
            return _number("SERVING")
        if service not in self._ready_names:
            return _number("SERVICE_UNKNOWN")
        return _number("SERVING" if self._is_ready() else "NOT_SERVING")


def _number(name: str) -> int:
    number: int = Status.Value(name)
    return number
