"""A streamed answer as the client puts it together, from a real HTTP server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from cli.chat_stream import Answer, ServerError, served_model, stream_chat
from cli.demo import summary

FACTS = {"prefill_worker": "prefill-0", "decode_worker": "decode-1"}


def piece(text: str) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": {"content": text}}]}


WHOLE: list[object] = [
    {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]},
    piece("Hel"),
    piece("lo"),
    {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    {"choices": [], "usage": {"completion_tokens": 2}, "tandem": FACTS},
    "[DONE]",
]
ANSWERS: dict[str, tuple[int, list[object]]] = {
    "whole": (200, WHOLE),
    "broken": (200, WHOLE[:3]),
    "failed": (200, [*WHOLE[:2], {"error": {"message": "the worker died"}}]),
    "refused": (400, [{"error": {"message": "too long", "code": "context_length_exceeded"}}]),
}


class Handler(BaseHTTPRequestHandler):
    """Answers by the model's name, and remembers what was asked."""

    asked: dict[str, object]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        Handler.asked = body
        status, events = ANSWERS[body["model"]]
        self.send_response(status)
        self.end_headers()
        for event in events:
            data = event if isinstance(event, str) else json.dumps(event)
            line = data if status != 200 else f"data: {data}\n\n"
            self.wfile.write(line.encode())

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "the-model"}]}')

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def ask(url: str, model: str, pieces: list[str]) -> Answer:
    return stream_chat(
        url,
        {"model": model, "seed": 3},
        [{"role": "user", "content": "hi"}],
        timeout_s=20.0,
        on_text=pieces.append,
    )


def test_pieces_arrive_one_by_one_and_make_the_answer(url: str) -> None:
    pieces: list[str] = []
    answer = ask(url, "whole", pieces)
    assert pieces == ["Hel", "lo"]
    assert (answer.text, answer.num_tokens, answer.facts) == ("Hello", 2, FACTS)
    assert 0.0 < answer.ttft_s <= answer.total_s
    assert Handler.asked["stream"] is True
    assert Handler.asked["seed"] == 3


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("broken", "broke off"),
        ("failed", "the worker died"),
        ("refused", "400: too long"),
    ],
)
def test_an_answer_that_fails_says_why(url: str, model: str, reason: str) -> None:
    with pytest.raises(ServerError, match=reason):
        ask(url, model, [])


def test_a_server_that_is_not_there_is_named() -> None:
    with pytest.raises(ServerError, match="http://127.0.0.1:9"):
        ask("http://127.0.0.1:9", "whole", [])


def test_the_served_model_is_the_first_listed(url: str) -> None:
    assert served_model(url) == "the-model"


def test_time_per_output_token_leaves_the_first_one_out() -> None:
    answer = Answer("x", ttft_s=1.0, total_s=3.0, num_tokens=5)
    assert answer.tpot_s == 0.5
    assert Answer("x", ttft_s=1.0, total_s=1.0, num_tokens=1).tpot_s is None


def test_the_demo_names_times_and_workers() -> None:
    text = summary(Answer("x", ttft_s=0.1234, total_s=1.1234, num_tokens=11, facts=FACTS))
    assert "123.4 ms" in text
    assert "100.0 ms  (11 tokens)" in text
    assert "prefill-0" in text
    assert "decode-1" in text


def test_the_demo_says_when_there_was_no_prefill_worker() -> None:
    facts = {"prefill_worker": "", "decode_worker": "decode-0"}
    assert "the decode worker computed the prompt" in summary(Answer("x", 0.1, 0.2, 1, facts))
