"""An OpenAI-compatible server as the load generator sees it.

One request: POST with `stream` and `include_usage` -> chunks with output -> usage -> [DONE] -> one
`RequestRecord`, whatever happens: what the world does to a request is a result here, not an error.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from bench.chunk import ChunkLog
from bench.http_connection import ConnectionPool, Response, parse_origin
from bench.http_response import ProtocolError
from bench.prompts import TokenRange, prompt_text, prompt_token_ids
from bench.record import RequestRecord
from bench.workload import WorkItem
from core.clock import Clock
from core.errors import TandemError

Endpoint = Literal["completions", "chat"]
PromptKind = Literal["tokens", "words"]
_JSON = "application/json"


class ServerError(TandemError):
    """The server does not answer a question that the benchmark must ask before it begins."""

    code = "server_error"


@dataclass(frozen=True, slots=True)
class Target:
    """Which server is loaded, and in what manner."""

    base_url: str
    model: str = ""
    endpoint: Endpoint = "completions"
    prompt_kind: PromptKind = "tokens"
    """tokens: token ids, which only the completions endpoint takes; words: text."""
    tokens: TokenRange = TokenRange()
    ignore_eos: bool = False
    temperature: float = 0.0
    api_key: str | None = None
    include_timings: bool = False
    """Ask a Tandem server to report its own durations."""
    extra_body: Mapping[str, object] = field(default_factory=dict)
    """Fields that only this server knows, sent with every request."""
    timeout_s: float = 600.0
    """Deadline of one request."""


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request as the bytes that are sent."""

    index: int
    arrival_s: float
    payload: bytes


class OpenAIClient:
    """Sends prepared requests to one target; owns the connections."""

    def __init__(self, target: Target, clock: Clock) -> None:
        self.target = target
        self._clock = clock
        self._pool = ConnectionPool(parse_origin(target.base_url), clock)

    async def send(self, request: PreparedRequest) -> RequestRecord:
        """One request to its end. Never raises for what server or network do."""
        started_s = self._clock.now()
        log = ChunkLog()
        try:
            async with asyncio.timeout(self.target.timeout_s):
                response = await self._pool.exchange(request.payload, log.add)
            error = log.problem() if response.status == 200 else _status_error(response)
        except TimeoutError:
            error = "timeout"
        except ProtocolError:
            error = "broken stream"
        except OSError as problem:
            error = f"connection: {type(problem).__name__}"
        return log.record(request.index, started_s, self._clock.now(), error)

    async def get(self, path: str) -> Response:
        """A plain GET of `path`, from the server's root. Raises ServerError."""
        return await self._ask(path, _http_request("GET", path, self.target, b""))

    async def call(
        self, method: str, path: str, body: bytes = b"", content_type: str = _JSON
    ) -> Response:
        """One exchange without a stream, `path` being below the API's own. Raises ServerError."""
        whole = _prefix(self.target.base_url) + path
        request = _http_request(method, whole, self.target, body, content_type)
        return await self._ask(whole, request)

    async def metrics_page(self) -> str:
        """The server's Prometheus page; empty if it has none. Raises ServerError."""
        response = await self.get("/metrics")
        return response.body.decode() if response.status == 200 else ""

    async def first_model(self) -> str:
        """The name of the first model the server lists. Raises ServerError."""
        response = await self.call("GET", "/models")
        try:
            return str(json.loads(response.body)["data"][0]["id"])
        except (ValueError, LookupError, TypeError):
            raise ServerError(f"{self.target.base_url} lists no model; name one") from None

    def close(self) -> None:
        """Closes idle connections. Idempotent."""
        self._pool.close()

    async def _ask(self, path: str, request: bytes) -> Response:
        try:
            async with asyncio.timeout(self.target.timeout_s):
                return await self._pool.exchange(request, _no_events)
        except (OSError, ProtocolError) as problem:
            reason = str(problem) or type(problem).__name__
            raise ServerError(f"no answer from {self.target.base_url}{path}: {reason}") from None


async def with_model(target: Target, clock: Clock) -> Target:
    """The target with its model's name filled in from the server, if it has none."""
    if target.model:
        return target
    client = OpenAIClient(target, clock)
    try:
        return replace(target, model=await client.first_model())
    finally:
        client.close()


def prepare(item: WorkItem, target: Target, seed: str) -> PreparedRequest:
    """The bytes of the item's request to the target."""
    path = "chat/completions" if target.endpoint == "chat" else "completions"
    body = json.dumps(_body(item, target, seed), separators=(",", ":")).encode()
    payload = _http_request("POST", f"{_prefix(target.base_url)}/{path}", target, body)
    return PreparedRequest(item.index, item.arrival_s, payload)


def _body(item: WorkItem, target: Target, seed: str) -> dict[str, object]:
    body: dict[str, object] = {
        "model": target.model,
        "max_tokens": item.output_len,
        "temperature": target.temperature,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if target.endpoint == "chat":
        body["messages"] = [{"role": "user", "content": prompt_text(item, seed)}]
    elif target.prompt_kind == "words" or item.text is not None:
        body["prompt"] = prompt_text(item, seed)
    else:
        body["prompt"] = prompt_token_ids(item, seed, target.tokens)
    # Extensions are sent only when asked for: other servers may refuse what they don't know.
    if target.ignore_eos:
        body["ignore_eos"] = True
    if target.include_timings:
        body["include_timings"] = True
    return {**body, **target.extra_body}


def _prefix(base_url: str) -> str:
    """The path under which the API lies: the URL's own, or /v1."""
    path = base_url.split("://", 1)[-1].partition("/")[2].strip("/")
    return f"/{path}" if path else "/v1"


def _http_request(
    method: str, path: str, target: Target, body: bytes, content_type: str = _JSON
) -> bytes:
    host = target.base_url.split("://", 1)[-1].partition("/")[0]
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {host}",
        "User-Agent: tandem-bench",
        f"Content-Type: {content_type}",
        f"Content-Length: {len(body)}",
    ]
    if target.api_key is not None:
        lines.append(f"Authorization: Bearer {target.api_key}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def _status_error(response: Response) -> str:
    """`HTTP 400 context_length_exceeded`, as far as the body tells."""
    try:
        error = json.loads(response.body)["error"]
        detail = str(error.get("code") or error.get("type") or "")
    except (ValueError, LookupError, TypeError, AttributeError):
        detail = ""
    return f"HTTP {response.status} {detail}".strip()


def _no_events(now_s: float, payload: bytes) -> None:
    """Where events of a plain GET would go."""
