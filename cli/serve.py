"""`tandem serve`: a whole cluster on this machine, or on an existing Ray cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import ConfigFile, Model, Quantization, Settings, load

if TYPE_CHECKING:
    from cluster.run_record import Run
    from core.config import Config

NumPrefill = Annotated[int | None, typer.Option(min=0, help="Prefill workers.", show_default=False)]
NumDecode = Annotated[int | None, typer.Option(min=1, help="Decode workers.", show_default=False)]
Port = Annotated[
    int | None,
    typer.Option(help="HTTP port; 0 picks a free one. Usually 8000.", show_default=False),
]
GrpcPort = Annotated[
    int | None,
    typer.Option(help="Public gRPC port; 0 picks a free one. Usually 50051.", show_default=False),
]
Combined = Annotated[
    bool,
    typer.Option("--combined", help="No prefill workers: decode workers compute prompts too."),
]


def serve(
    model: Model = None,
    quantization: Quantization = None,
    file: ConfigFile = None,
    settings: Settings = None,
    num_prefill_workers: NumPrefill = None,
    num_decode_workers: NumDecode = None,
    port: Port = None,
    grpc_port: GrpcPort = None,
    combined: Combined = False,
) -> None:
    """Serve MODEL over HTTP (OpenAI's API) and gRPC, until Ctrl-C.

    Starts a private Ray on this machine, on it the workers and the router, all at once, and says
    when all is ready. A worker that dies is replaced. Ctrl-C, SIGTERM or `tandem stop` ends
    everything within ten seconds.

    Example: tandem serve default --num-decode-workers 2 --set cache.block_size=32
    """
    config = serve_config(
        load(
            file,
            settings,
            model__model=model,
            model__quantization=quantization,
            cluster__num_prefill_workers=num_prefill_workers,
            cluster__num_decode_workers=num_decode_workers,
            router__http_port=port,
            router__grpc_port=grpc_port,
        ),
        combined=combined,
    )
    from cli.launch import launch

    raise typer.Exit(launch(config, _announce))


def serve_config(config: Config, *, combined: bool) -> Config:
    """The configuration with `--combined` applied."""
    if not combined:
        return config
    cluster = config.cluster.model_copy(update={"num_prefill_workers": 0})
    router = config.router.model_copy(update={"mode": "combined"})
    return config.model_copy(update={"cluster": cluster, "router": router})


async def _announce(run: Run) -> None:
    """Says where it serves, then lets it serve."""
    import asyncio

    typer.echo(ready_text(run))
    await asyncio.Event().wait()


def ready_text(run: Run) -> str:
    """Endpoints, and a request to paste."""
    question = {"role": "user", "content": "What is the capital of France?"}
    body = json.dumps({"model": run.model, "messages": [question], "temperature": 0})
    cacert = f"--cacert {run.http_certificate} " if run.http_certificate else ""
    return (
        f"\nTandem serves {run.model}\n"
        f"  HTTP  {run.http_url}/v1\n"
        f"  gRPC  {run.grpc_address}\n"
        f"  logs  {run.log_dir}\n"
        f"\nTry it:\n"
        f"  curl {cacert}{run.http_url}/v1/chat/completions "
        f"-H 'Content-Type: application/json' -d '{body}'\n"
    )
