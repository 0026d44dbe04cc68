"""Router and workers as processes of their own, without Ray; they find each other in a Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from cli.options import ConfigFile, Model, Quantization, Settings, WorkerId, load

if TYPE_CHECKING:
    from core.config import Config
    from core.request import Phase


def router(model: Model = None, file: ConfigFile = None, settings: Settings = None) -> None:
    """Run the router alone. Needs --set state.backend=redis.

    Workers may come and go while it runs; requests wait a little for the first pair.
    """
    config = load(file, settings, model__model=model)
    import uvloop

    from cluster.assembly import make_router
    from cluster.by_hand import run_router

    _prepare(config, "router")
    scheme = "http" if config.router.tls_certificate is None else "https"
    status = uvloop.run(
        run_router(
            config,
            make=make_router,
            on_ready=lambda at: typer.echo(
                f"router ready: {scheme}://{at.http}/v1, gRPC {at.grpc}"
            ),
        )
    )
    raise typer.Exit(status)


def prefill_worker(
    model: Model = None,
    quantization: Quantization = None,
    file: ConfigFile = None,
    settings: Settings = None,
    worker_id: WorkerId = None,
) -> None:
    """Run one prefill worker alone. Needs --set state.backend=redis.

    SIGTERM drains it: no new work, handoffs are fetched or expire, then it exits.
    """
    from core.request import Phase

    config = load(file, settings, model__model=model, model__quantization=quantization)
    _run_worker(config, Phase.PREFILL, worker_id)


def decode_worker(
    model: Model = None,
    quantization: Quantization = None,
    file: ConfigFile = None,
    settings: Settings = None,
    worker_id: WorkerId = None,
) -> None:
    """Run one decode worker alone. Needs --set state.backend=redis.

    SIGTERM drains it: no new work, its sequences finish, then it exits.
    """
    from core.request import Phase

    config = load(file, settings, model__model=model, model__quantization=quantization)
    _run_worker(config, Phase.DECODE, worker_id)


def _run_worker(config: Config, role: Phase, worker_id: str | None) -> None:
    import os
    import socket

    import uvloop

    from cluster.assembly import make_worker
    from cluster.by_hand import run_worker

    name = worker_id or f"{role.value}-{socket.gethostname()}-{os.getpid()}"
    _prepare(config, name)
    status = uvloop.run(
        run_worker(
            config,
            role,
            name,
            make=make_worker,
            on_ready=lambda member: typer.echo(f"{member.worker_id} ready: {member.address}"),
        )
    )
    raise typer.Exit(status)


def _prepare(config: Config, process: str) -> None:
    from cli.fetch import fetch_card
    from cluster.logs import configure_logging
    from cluster.store_factory import check_shared

    configure_logging(config, process)
    check_shared(config.state)
    fetch_card(config.model)
