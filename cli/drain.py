"""`tandem drain`: takes one worker out of service without losing a request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import ConfigFile, RunId, Settings, load
from cli.workers import WorkerAt, find_workers

if TYPE_CHECKING:
    from core.config import Config
    from protos.secure_grpc import PeerCertificates

EXIT_REMAINED = 1
_ANSWER_S = 5.0
"""For the reply to come back, past the time that the worker has."""
_LOOK_S = 0.2
"""Between two looks for the next incarnation: a run's record tells nobody that it changed."""


def drain(
    worker: Annotated[str, typer.Argument(help="Its id, as in `tandem status`: decode-0 ...")],
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            metavar="S",
            help="How long its sequences may take to finish; unset: worker.drain_timeout_s.",
            show_default=False,
        ),
    ] = None,
    restart: Annotated[
        bool,
        typer.Option("--restart", help="Have it replaced, and wait for its next incarnation."),
    ] = False,
    run: RunId = None,
    file: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Let WORKER finish what it has, and end.

    It leaves the cluster first, so that it gets no new work; then its sequences end and its
    handoffs are fetched. What is left when the time is up goes on with other workers. `tandem
    serve` doesn't start it again, except with --restart. A worker started by hand ends with status
    0, or with status 75 for --restart, which whatever runs it must answer with a new start.

    One worker after the other with --restart is a rolling restart. The exit status is 1 if
    something was left when the time was up.
    """
    config = load(file, settings)
    timeout_s = config.worker.drain_timeout_s if timeout is None else timeout
    raise typer.Exit(asyncio.run(_drain(config, run, worker, timeout_s, restart)))


async def _drain(
    config: Config, run_id: str | None, worker_id: str, timeout_s: float, restart: bool
) -> int:
    from protos.certificate_files import peer_certificates

    worker = named(worker_id, await find_workers(config, run_id))
    typer.echo(f"{worker_id} at {worker.address} drains for at most {timeout_s:g} s ...")
    certificates = peer_certificates(config.tls)
    num_remaining = await retire(worker, timeout_s, restart=restart, certificates=certificates)
    typer.echo(f"{worker_id} {outcome(num_remaining)}; it ends now")
    if restart:
        follower = await next_life(config, run_id, worker)
        typer.echo(f"{worker_id} is replaced, at {follower.address}")
    return EXIT_REMAINED if num_remaining else 0


def named(worker_id: str, workers: list[WorkerAt]) -> WorkerAt:
    """The worker of that id. Raises ConfigError with those that there are."""
    from core.errors import ConfigError

    for worker in workers:
        if worker.worker_id == worker_id:
            return worker
    there = ", ".join(worker.worker_id for worker in workers) or "none"
    raise ConfigError(f"no worker is called {worker_id}; there are: {there}")


async def retire(
    worker: WorkerAt, timeout_s: float, *, restart: bool, certificates: PeerCertificates = None
) -> int:
    """Drains the worker, which then ends; how many attempts remained. Raises WorkerLostError."""
    import grpc.aio

    from core.errors import WorkerLostError
    from protos import worker_pb2, worker_pb2_grpc
    from protos.secure_grpc import open_channel

    request = worker_pb2.DrainRequest(deadline_s=timeout_s, restart=restart)
    async with open_channel(worker.address, certificates) as channel:
        stub: worker_pb2_grpc.WorkerAsyncStub = worker_pb2_grpc.WorkerStub(channel)
        try:
            reply = await stub.Drain(request, timeout=timeout_s + _ANSWER_S)
        except grpc.aio.AioRpcError as error:
            why = f"{error.code().name}: {error.details()}"
            raise WorkerLostError(f"{worker.worker_id} does not answer ({why})") from None
    return reply.num_remaining


def outcome(num_remaining: int) -> str:
    """In words."""
    if not num_remaining:
        return "has drained, nothing remained"
    attempts = "attempt" if num_remaining == 1 else "attempts"
    return f"still had {num_remaining} {attempts} when the time was up"


async def next_life(config: Config, run_id: str | None, worker: WorkerAt) -> WorkerAt:
    """The incarnation that follows, once it can serve. Raises UnavailableError if none comes."""
    from core.errors import UnavailableError

    timeout_s = config.cluster.start_timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                for other in await find_workers(config, run_id):
                    same_id = other.worker_id == worker.worker_id
                    if same_id and other.incarnation != worker.incarnation:
                        return other
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise UnavailableError(
            f"{worker.worker_id} was not started again within {timeout_s:g} s", reason="no_worker"
        ) from None
