"""`tandem probe`: a worker's health for whoever starts it, where workers take no plain calls."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from cli.options import ConfigFile, Settings, load

if TYPE_CHECKING:
    from protos.secure_grpc import PeerCertificates

EXIT_NOT_SERVING = 1


def probe(
    address: Annotated[str, typer.Argument(help="host:port of its gRPC server.")],
    service: Annotated[
        Literal["readiness", "liveness"], typer.Option(help="What it is asked for.")
    ] = "readiness",
    timeout: Annotated[
        float, typer.Option(min=0.0, metavar="S", help="Longest wait for the answer.")
    ] = 2.0,
    file: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Ask the worker at ADDRESS for its health, with the certificates of tls.*.

    Kubernetes' own gRPC probes know no certificates; without tls.* they serve as well.

    The exit status is 1 unless the worker says that it serves.
    """
    from protos.certificate_files import peer_certificates

    certificates = peer_certificates(load(file, settings).tls)
    said = asyncio.run(health_of(address, service, timeout, certificates))
    typer.echo(said)
    if said != "SERVING":
        raise typer.Exit(EXIT_NOT_SERVING)


async def health_of(
    address: str, service: str, timeout_s: float, certificates: PeerCertificates = None
) -> str:
    """The status that it names, or why it named none."""
    import grpc.aio
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from protos.secure_grpc import open_channel

    async with open_channel(address, certificates) as channel:
        request = health_pb2.HealthCheckRequest(service=service)
        try:
            reply = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            return f"no answer ({error.code().name}): {error.details()}"
    status: str = health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)
    return status
