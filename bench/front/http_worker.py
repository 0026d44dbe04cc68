"""An OpenAI server without a model: `python -m bench.front.http_worker STEP_S` prints its address.

What worker.py is to our router, to routers of others: an answer's first token leaves at once, the
others with the steps, each as an event of its own.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from typing import Any, cast

import h11
import uvloop

from bench.front.process import say
from bench.prompts import WORDS
from router.http.protocol import StreamingConnection

MODEL = "synthetic"


class Steps:
    """Gives every answer that runs its next token, every `step_s`."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._answers: set[Answer] = set()

    def begin(self, answer: Answer) -> None:
        """Its first token leaves now."""
        if answer.tell_next():
            self._answers.add(answer)

    def end(self, answer: Answer) -> None:
        """Nobody listens any more, or it has ended. Idempotent."""
        self._answers.discard(answer)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + self._step_s, loop.time())
            await asyncio.sleep(due - loop.time())
            for answer in tuple(self._answers):
                if not answer.tell_next():
                    self.end(answer)


class Answer:
    """One streamed completion, of as many tokens as were asked for."""

    def __init__(self, connection: Connection, asked: dict[str, Any], number: int) -> None:
        self._connection = connection
        self._left = int(asked.get("max_tokens", 16))
        self._told = 0
        self._head = {
            "id": f"cmpl-{number:032x}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": MODEL,
        }

    def tell_next(self) -> bool:
        """Whether it goes on after that."""
        self._left -= 1
        choice = {
            "index": 0,
            "text": f" {WORDS[self._told % len(WORDS)]}",
            "logprobs": None,
            "finish_reason": None if self._left else "length",
        }
        self._told += 1
        self._connection.send(h11.Data(_event(self._head | {"choices": [choice]})))
        if not self._left:
            usage = {"prompt_tokens": 1, "completion_tokens": self._told}
            last = _event(self._head | {"choices": [], "usage": usage}) + b"data: [DONE]\n\n"
            self._connection.send(h11.Data(last))
            self._connection.end()
        return self._left > 0


class Connection(asyncio.Protocol):
    """One client: a completion after the other, or whatever else it asks, which is well."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._http = StreamingConnection(h11.SERVER)
        self._path = b""
        self._body = bytearray()
        self._answer: Answer | None = None
        self._num_answers = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's is none by its class

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        self._read()

    def send(self, event: h11.Event) -> None:
        self._transport.write(self._http.send(event) or b"")

    def end(self) -> None:
        """The answer is whole; the next one may be asked for."""
        self.send(h11.EndOfMessage())
        self._answer = None
        if self._http.our_state is h11.MUST_CLOSE:
            self._transport.close()
            return
        self._http.start_next_cycle()
        self._read()

    def _read(self) -> None:
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                self._path, self._body = event.target, bytearray()
            elif isinstance(event, h11.Data):
                self._body += event.data
            elif isinstance(event, h11.EndOfMessage):
                self._begin()
                return
            elif isinstance(event, h11.ConnectionClosed):
                self._stop()
                self._transport.close()
                return
            else:
                return

    def _begin(self) -> None:
        if self._path == b"/v1/completions":
            self.send(_head("text/event-stream"))
            self._num_answers += 1
            self._answer = Answer(self, json.loads(self._body), self._num_answers)
            self._steps.begin(self._answer)
            return
        body = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()
        self.send(_head("application/json"))
        self.send(h11.Data(body))
        self.end()

    def _stop(self) -> None:
        if self._answer is not None:
            self._steps.end(self._answer)
            self._answer = None


def _head(media_type: str) -> h11.Response:
    return h11.Response(status_code=200, headers=[("content-type", media_type)], reason=b"OK")


def _event(value: dict[str, object]) -> bytes:
    return b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


async def _serve(step_s: float) -> None:
    steps, loop = Steps(step_s), asyncio.get_running_loop()
    stopped = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    server = await loop.create_server(lambda: Connection(steps), "127.0.0.1", 0)
    running = asyncio.create_task(steps.run())
    say(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    await stopped.wait()
    running.cancel()
    server.close()


if __name__ == "__main__":
    uvloop.run(_serve(float(sys.argv[1])))
