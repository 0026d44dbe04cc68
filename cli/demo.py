"""`tandem demo`: serve, ask one question, show the answer and its timings, stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import ConfigFile, Model, Quantization, Settings, load
from cli.serve import Combined, NumDecode, NumPrefill, serve_config

if TYPE_CHECKING:
    from cli.chat_stream import Answer
    from cluster.run_record import Run

QUESTION = "Explain in three short sentences why the sky is blue."
MAX_TOKENS = 96


def demo(
    model: Model = None,
    quantization: Quantization = None,
    file: ConfigFile = None,
    settings: Settings = None,
    num_prefill_workers: NumPrefill = None,
    num_decode_workers: NumDecode = None,
    combined: Combined = False,
    question: Annotated[str, typer.Option(help="What to ask.")] = QUESTION,
) -> None:
    """Serve MODEL, stream one answer, print TTFT, TPOT and who served it, stop.

    Uses free ports, so it runs beside a `tandem serve`.
    """
    config = serve_config(
        load(
            file,
            settings,
            model__model=model,
            model__quantization=quantization,
            cluster__num_prefill_workers=num_prefill_workers,
            cluster__num_decode_workers=num_decode_workers,
            router__http_port=0,
            router__grpc_port=0,
        ),
        combined=combined,
    )
    import asyncio

    from cli.launch import launch

    async def use(run: Run) -> None:
        answer = await asyncio.to_thread(_ask, run, question, config.router.request_timeout_s)
        typer.echo("\n\n" + summary(answer))

    raise typer.Exit(launch(config, use))


def summary(answer: Answer) -> str:
    """The timings as the client saw them, and the workers that the router names."""
    tpot = "-" if answer.tpot_s is None else f"{answer.tpot_s * 1000:.1f} ms"
    facts = answer.facts
    prefill = facts.get("prefill_worker") or "(none: the decode worker computed the prompt)"
    return (
        f"TTFT     {answer.ttft_s * 1000:.1f} ms\n"
        f"TPOT     {tpot}  ({answer.num_tokens} tokens)\n"
        f"prefill  {prefill}\n"
        f"decode   {facts.get('decode_worker') or '(none: the first token was the last)'}"
    )


def _ask(run: Run, question: str, timeout_s: float) -> Answer:
    from cli.chat_stream import stream_chat
    from cli.runs import trust_run

    typer.echo(f"\n{run.model} is asked: {question}\n")
    body = {
        "model": run.model,
        "max_tokens": MAX_TOKENS,
        "temperature": 0,
        "include_timings": True,
    }
    return stream_chat(
        run.http_url,
        body,
        [{"role": "user", "content": question}],
        timeout_s=timeout_s,
        on_text=lambda piece: typer.echo(piece, nl=False),
        verify=trust_run(run),
    )
