"""Our errors as gRPC's: a status code, our code and field, and google.rpc's details of it.

The details go into the trailing metadata themselves: `grpcio-status` would only wrap this one line,
and its helper for aborting is for gRPC's older, threaded server.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any, NoReturn, TypeAlias

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2

from core.errors import TandemError
from router.faults import Fault, fault_of
from router.running import AmbiguousRequestError

log = logging.getLogger(__name__)

STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    AmbiguousRequestError.http_status: grpc.StatusCode.FAILED_PRECONDITION,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    503: grpc.StatusCode.UNAVAILABLE,
}
DOMAIN = "tandem"
DETAILS_KEY = "grpc-status-details-bin"
"""Where clients of every language look for a google.rpc.Status."""
MAX_MESSAGE_BYTES = 1000
"""Of a message in UTF-8: a call's trailing metadata may have 8 kB, and holds it up to three
times, once with three characters for each byte."""

Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]


@contextlib.asynccontextmanager
async def faults_told(context: Context) -> AsyncIterator[None]:
    """Ends the call with whatever is raised within; of a bug of ours, without its details."""
    try:
        yield
    except TandemError as error:
        await abort(context, error)
    except Exception:  # the outermost frame: gRPC would tell the client our traceback's last line
        log.exception("a gRPC call broke")
        await abort(context, TandemError("internal error"))


async def abort(context: Context, error: TandemError) -> NoReturn:
    fault = fault_of(error)
    code = STATUS.get(fault.status, grpc.StatusCode.INTERNAL)
    message = fault.message.encode(errors="replace")[:MAX_MESSAGE_BYTES].decode(errors="ignore")
    metadata: list[tuple[str, str | bytes]] = [
        ("tandem-code", fault.code),
        ("tandem-param", fault.param or ""),
        (DETAILS_KEY, _details(fault, code, message).SerializeToString()),
    ]
    if fault.reason:
        metadata.append(("tandem-reason", fault.reason))
    if fault.retry_after_s is not None:
        metadata.append(("retry-after", str(fault.retry_after_s)))
    await context.abort(code, message, trailing_metadata=tuple(metadata))


def _details(fault: Fault, code: grpc.StatusCode, message: str) -> status_pb2.Status:
    status = status_pb2.Status(code=code.value[0], message=message)
    info = error_details_pb2.ErrorInfo(reason=fault.code.upper(), domain=DOMAIN)
    status.details.add().Pack(info)
    if fault.param is not None:
        violations = error_details_pb2.BadRequest()
        violations.field_violations.add(field=fault.param, description=message)
        status.details.add().Pack(violations)
    if fault.retry_after_s is not None:
        delay = Duration(seconds=fault.retry_after_s)
        status.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    return status
