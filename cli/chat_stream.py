"""One streamed chat answer from an OpenAI server, as the client sees it."""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import httpx

from core.errors import TandemError

Message = Mapping[str, str]
Verify: TypeAlias = ssl.SSLContext | bool
"""What an HTTPS server's certificate is verified with; True: what the system trusts."""

CONNECT_TIMEOUT_S = 5.0


class ServerError(TandemError):
    """The server cannot be reached, refused the request, or broke off its answer."""

    code = "server_error"


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished answer and its client-side times in seconds."""

    text: str
    ttft_s: float
    total_s: float
    num_tokens: int
    facts: Mapping[str, object] = field(default_factory=dict)
    """Tandem's own account of it: workers, queue, prefill ... Empty from other servers."""

    @property
    def tpot_s(self) -> float | None:
        """Mean time per output token after the first; None if there was only one."""
        if self.num_tokens < 2:
            return None
        return (self.total_s - self.ttft_s) / (self.num_tokens - 1)


def stream_chat(
    base_url: str,
    body: Mapping[str, object],
    messages: Sequence[Message],
    *,
    timeout_s: float,
    on_text: Callable[[str], None],
    verify: Verify = True,
    api_key: str | None = None,
) -> Answer:
    """Sends a conversation and reports its answer piece by piece. Raises ServerError.

    `timeout_s` bounds the wait for each next event. `body` is the request without its messages.
    """
    request = {
        **body,
        "messages": list(messages),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    reader = _Reader(on_text)
    timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
    try:
        url = f"{base_url}/v1/chat/completions"
        with httpx.stream(
            "POST",
            url,
            json=request,
            timeout=timeout,
            verify=verify,
            headers=_credentials(api_key),
        ) as response:
            if response.status_code != httpx.codes.OK:
                raise ServerError(_refusal(response))
            for event in _events(response.iter_lines()):
                reader.take(event)
    except httpx.HTTPError as error:
        raise ServerError(f"{base_url}: {error or type(error).__name__}") from None
    return reader.answer()


def served_model(base_url: str, *, verify: Verify = True, api_key: str | None = None) -> str:
    """The first model the server lists. Raises ServerError."""
    try:
        response = httpx.get(
            f"{base_url}/v1/models",
            timeout=CONNECT_TIMEOUT_S,
            verify=verify,
            headers=_credentials(api_key),
        )
        response.raise_for_status()
    except httpx.HTTPError as error:
        raise ServerError(f"{base_url}: {error or type(error).__name__}") from None
    name: str = response.json()["data"][0]["id"]
    return name


def _credentials(api_key: str | None) -> dict[str, str]:
    return {} if api_key is None else {"authorization": f"Bearer {api_key}"}


class _Reader:
    """Puts the events of one answer together."""

    def __init__(self, on_text: Callable[[str], None]) -> None:
        self._on_text = on_text
        self._began = time.monotonic()
        self._first: float | None = None
        self._pieces: list[str] = []
        self._num_tokens = 0
        self._facts: dict[str, object] = {}

    def take(self, event: Mapping[str, object]) -> None:
        if "error" in event:
            raise ServerError(_error_text(event["error"]))
        self._note_extras(event)
        choices = event.get("choices")
        if not isinstance(choices, list) or not choices:
            return
        piece = choices[0].get("delta", {}).get("content")
        if piece:
            self._first = self._first or time.monotonic()
            self._pieces.append(piece)
            self._on_text(piece)

    def answer(self) -> Answer:
        ended = time.monotonic()
        ttft_s = (self._first or ended) - self._began
        text = "".join(self._pieces)
        return Answer(text, ttft_s, ended - self._began, self._num_tokens, self._facts)

    def _note_extras(self, event: Mapping[str, object]) -> None:
        usage, facts = event.get("usage"), event.get("tandem")
        if isinstance(usage, dict):
            self._num_tokens = int(usage["completion_tokens"])
        if isinstance(facts, dict):
            self._facts = facts


def _events(lines: Iterator[str]) -> Iterator[Mapping[str, object]]:
    """The JSON objects of a server-sent event stream, up to its end mark."""
    for line in lines:
        if line.startswith("data: [DONE]"):
            return
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))
    raise ServerError("the answer broke off")


def _refusal(response: httpx.Response) -> str:
    response.read()
    try:
        return f"{response.status_code}: {_error_text(response.json()['error'])}"
    except (ValueError, KeyError, TypeError):
        return f"{response.status_code}: {response.text[:200]}"


def _error_text(error: object) -> str:
    return str(error.get("message", error)) if isinstance(error, dict) else str(error)
