"""`tandem chat`: a conversation with a running server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.options import ConfigFile, Settings, Url, load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cli.chat_stream import Message


def chat(
    question: Annotated[
        str | None,
        typer.Argument(help="Ask this once; unset: a conversation.", show_default=False),
    ] = None,
    url: Url = None,
    system: Annotated[str | None, typer.Option(help="System prompt.", show_default=False)] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest answer in tokens.")] = 512,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 is greedy.")] = 0.7,
    seed: Annotated[
        int | None, typer.Option(help="Makes answers repeatable.", show_default=False)
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="TANDEM_API_KEY",
            help="For a server that wants one (`tandem keys create`).",
            show_default=False,
        ),
    ] = None,
    file: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Chat with the server that runs here, or with any OpenAI server at --url.

    Answers appear as they are generated. An empty line or Ctrl-D ends the conversation.
    """
    from cli.chat_stream import served_model, stream_chat
    from cli.runs import base_url, trust

    config = load(file, settings)
    address, verify = base_url(config, url), trust(config, url)
    body = {
        "model": served_model(address, verify=verify, api_key=api_key),
        "max_tokens": max_tokens,
        "temperature": temperature,
        **({} if seed is None else {"seed": seed}),
    }
    messages: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    for text in [question] if question is not None else _questions():
        messages.append({"role": "user", "content": text})
        answer = stream_chat(
            address,
            body,
            messages,
            timeout_s=config.router.request_timeout_s,
            on_text=lambda piece: typer.echo(piece, nl=False),
            verify=verify,
            api_key=api_key,
        )
        typer.echo()
        messages.append({"role": "assistant", "content": answer.text})


def _questions() -> Iterator[str]:
    while True:
        try:
            text = input("> ").strip()
        except EOFError:
            typer.echo()
            return
        if not text:
            return
        yield text
