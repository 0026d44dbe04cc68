"""A small OpenAI-compatible server that streams at a scripted pace, over real sockets.

It counts what it is asked, so that tests can compare what the client says with what was sent. Run
as a program (`python fakes_openai_server.py PORT TOKEN_PERIOD_S`), it serves until it is ended, to
measure what the load generator itself costs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType

Pace = Callable[[int], Awaitable[None]]
"""Awaited before the output chunk of that index is written."""


async def at_once(index: int) -> None:
    """The pace of a server that is never busy."""


def every(period_s: float) -> Pace:
    """One chunk per `period_s`."""

    async def pace(index: int) -> None:
        await asyncio.sleep(period_s)

    return pace


@dataclass
class FakeOpenAIServer:
    """Serves inside the running loop while its `async with` block lasts."""

    pace: Pace = at_once
    tokens_per_chunk: int = 1
    timings: dict[str, object] | None = None
    metrics: str = ""
    fail_requests: frozenset[int] = frozenset()
    """Requests, counted from 0, that are answered 429."""
    break_requests: frozenset[int] = frozenset()
    """Requests whose connection is closed in the middle of the stream."""
    drop_requests: frozenset[int] = frozenset()
    """Requests whose connection is closed before a byte is answered."""
    requests: list[dict[str, object]] = field(default_factory=list)
    num_connections: int = 0
    port: int = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> FakeOpenAIServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        await asyncio.gather(*self._handlers, return_exceptions=True)

    def __post_init__(self) -> None:
        self._writers: list[asyncio.StreamWriter] = []
        self._handlers: list[asyncio.Task[None]] = []

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._handlers.append(task)
        self._writers.append(writer)
        self.num_connections += 1
        try:
            while await self._answer_one(reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        path = head[0].split(" ")[1]
        length = next((int(h[15:]) for h in head if h.lower().startswith("content-length:")), 0)
        body = await reader.readexactly(length)
        if path == "/v1/models":
            _write_plain(writer, 200, json.dumps({"data": [{"id": "fake"}]}))
            return True
        if path == "/metrics":
            _write_plain(writer, 200, self.metrics)
            return True
        return await self._complete(writer, path.endswith("/chat/completions"), json.loads(body))

    async def _complete(
        self, writer: asyncio.StreamWriter, chat: bool, request: dict[str, object]
    ) -> bool:
        number = len(self.requests)
        self.requests.append(request)
        if number in self.drop_requests:
            return False
        if number in self.fail_requests:
            _write_plain(writer, 429, json.dumps({"error": {"code": "rate_limit_exceeded"}}))
            return True
        return await self._stream(writer, chat, request, broken=number in self.break_requests)

    async def _stream(
        self, writer: asyncio.StreamWriter, chat: bool, request: dict[str, object], *, broken: bool
    ) -> bool:
        num_tokens = int(str(request["max_tokens"]))
        num_chunks = -(-num_tokens // self.tokens_per_chunk)
        for index in range(num_chunks):
            await self.pace(index)
            if index == 0:
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                    b"Transfer-Encoding: chunked\r\n\r\n"
                )
                if chat:
                    _write_event(writer, _chunk({"delta": {"role": "assistant", "content": ""}}))
            piece: dict[str, object] = (
                {"delta": {"content": " word"}} if chat else {"text": " word"}
            )
            _write_event(writer, _chunk(piece))
            await writer.drain()
            if broken:
                return False
        closing: dict[str, object] = {"delta": {}} if chat else {"text": ""}
        _write_event(writer, _chunk({**closing, "finish_reason": "length"}))
        _write_event(writer, json.dumps({"choices": [], **self._accounts(request, num_tokens)}))
        _write_event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        return True

    def _accounts(self, request: dict[str, object], num_tokens: int) -> dict[str, object]:
        prompt = request.get("prompt")
        words = prompt.split() if isinstance(prompt, str) else prompt
        num_prompt_tokens = len(words) if isinstance(words, list) else 7
        usage = {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": num_tokens,
            "total_tokens": num_prompt_tokens + num_tokens,
            "prompt_tokens_details": {"cached_tokens": 3},
        }
        asked = request.get("include_timings") and self.timings is not None
        return {"usage": usage, "tandem": self.timings} if asked else {"usage": usage}


def _chunk(choice: dict[str, object]) -> str:
    head = {"id": "cmpl-0123456789abcdef", "object": "chunk", "created": 0, "model": "fake"}
    choices = [{"index": 0, "finish_reason": None, "logprobs": None, **choice}]
    return json.dumps({**head, "choices": choices})


def _write_event(writer: asyncio.StreamWriter, data: str) -> None:
    event = f"data: {data}\n\n".encode()
    writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")


def _write_plain(writer: asyncio.StreamWriter, status: int, body: str) -> None:
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    writer.write(f"{head}\r\n\r\n{body}".encode())


async def _serve_until_ended(port: int, period_s: float) -> None:
    pace = every(period_s) if period_s else at_once
    async with FakeOpenAIServer(pace=pace, port=port) as server:
        sys.stdout.write(f"serves {server.base_url}/v1\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


@contextlib.contextmanager
def server_in_a_thread(server: FakeOpenAIServer) -> Iterator[FakeOpenAIServer]:
    """The server in a loop of its own, for clients that run a loop themselves."""
    ready: Future[asyncio.Event] = Future()

    async def serve() -> None:
        async with server:
            over = asyncio.Event()
            ready.set_result(over)
            await over.wait()

    with asyncio.Runner() as runner:
        thread = threading.Thread(target=runner.run, args=(serve(),))
        thread.start()
        over = ready.result(timeout=10)
        try:
            yield server
        finally:
            runner.get_loop().call_soon_threadsafe(over.set)
            thread.join(timeout=10)


if __name__ == "__main__":
    asyncio.run(_serve_until_ended(int(sys.argv[1]), float(sys.argv[2])))
