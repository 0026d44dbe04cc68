"""What a client does wrong is its own fault, and told in OpenAI's shape by the real server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from fakes_byte_model import MAX_MODEL_LEN, VOCAB_SIZE, write_byte_model
from fakes_cases import CaseHouse, Json, case_house, settings, some_tokens

from core import metric_names as names

MAX_BODY_BYTES = 300_000
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SAYS_JSON = "application/json"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CaseHouse]:
    model = write_byte_model(tmp_path_factory.mktemp("byte-model"))
    with case_house(settings(model, f"router.max_body_bytes={MAX_BODY_BYTES}")) as made:
        yield made
        # Whatever was sent, the server still serves, and nobody got as far as a worker.
        assert made.run(made.ask("Hello", max_tokens=3))["usage"]["completion_tokens"] == 3
        assert made.run(made.metric(names.REQUESTS_TOTAL, outcome="internal_error")) == 0
        assert len(made.p.steps.num_tokens) == 1


class Fault(NamedTuple):
    """A request that can't succeed, and what it is answered."""

    path: str
    fields: dict[str, Any]
    param: str | None
    code: str
    status: int


def chat(param: str, code: str = "invalid_request", *, status: int = 400, **fields: Any) -> Fault:
    given = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 3}
    return Fault(CHAT, given | fields, param, code, status)


def text(param: str, code: str = "invalid_request", **fields: Any) -> Fault:
    return Fault(COMPLETIONS, {"prompt": "Hello", "max_tokens": 3} | fields, param, code, 400)


def message(**fields: object) -> list[dict[str, object]]:
    return [{"role": "user", "content": "Hello"} | fields]


TOO_LONG = "context_length_exceeded"
FAULTS = {
    "prompt too long": text("prompt", TOO_LONG, prompt=some_tokens(MAX_MODEL_LEN), max_tokens=None),
    "prompt and output too long": text(
        "prompt", TOO_LONG, prompt=some_tokens(MAX_MODEL_LEN - 9), max_tokens=10
    ),
    "chat too long": chat("messages", TOO_LONG, messages=message(content="a" * MAX_MODEL_LEN)),
    "unknown model": chat("model", "model_not_found", status=404, model="gpt-none"),
    "null model": chat("model", "invalid_type", model=None),
    "unknown field": chat("tempreature", "unknown_parameter", tempreature=1),
    "tools": chat("tools.0.type", "missing_required_parameter", tools=[{}]),
    "functions": chat("functions", "unsupported_parameter", functions=[{}]),
    "best of": text("best_of", n=2, best_of=1),
    "schema that can't be followed": chat(
        "response_format",
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": {"not": {}}},
        },
    ),
    "text for a number": chat("max_tokens", "invalid_type", max_tokens="ten"),
    "text for a flag": chat("logprobs", "invalid_type", logprobs="yes"),
    "object for text": chat("user", "invalid_type", user={}),
    "no messages": chat("messages", "invalid_type", messages=[]),
    "null messages": chat("messages", "invalid_type", messages=None),
    "text for messages": chat("messages", "invalid_type", messages="Hello"),
    "wrong role": chat("messages.0.role", "invalid_type", messages=message(role="robot")),
    "no content": chat(
        "messages.0.content", "missing_required_parameter", messages=[{"role": "user"}]
    ),
    "image": chat(
        "messages.0.content",
        "invalid_type",
        messages=message(content=[{"type": "image_url", "image_url": {"url": "x"}}]),
    ),
    "too many stops": chat("stop", stop=["x"] * 17),
    "empty stop": chat("stop", stop=""),
    "number for stop": chat("stop", "invalid_type", stop=3),
    "n of zero": chat("n", n=0),
    "n too large": chat("n", n=129),
    "n and a half": chat("n", "invalid_type", n=1.5),
    "temperature too high": chat("temperature", temperature=2.1),
    "temperature below zero": chat("temperature", temperature=-0.1),
    "top_p of zero": chat("top_p", top_p=0),
    "top_k below": chat("top_k", top_k=-2),
    "negative max_tokens": chat("max_tokens", max_tokens=-1),
    "max_tokens of zero": text("max_tokens", max_tokens=0),
    "two limits": chat("max_completion_tokens", max_completion_tokens=4),
    "min over max": chat("min_tokens", min_tokens=4),
    "huge integer": chat("max_tokens", max_tokens=10**30),
    "huge seed": chat("seed", seed=2**63),
    "bias of no token": chat("logit_bias", logit_bias={"x": 1}),
    "bias beyond the vocabulary": chat("logit_bias", logit_bias={str(VOCAB_SIZE): 1}),
    "bias too large": chat("logit_bias", logit_bias={"5": 101}),
    "stop token beyond the vocabulary": chat("stop_token_ids", stop_token_ids=[VOCAB_SIZE]),
    "too many log-probabilities": chat("top_logprobs", logprobs=True, top_logprobs=21),
    "best of none": chat("top_logprobs", top_logprobs=2),
    "null prompt": text("prompt", "invalid_type", prompt=None),
    "empty list": text("prompt", prompt=[]),
    "empty prompt": text("prompt", prompt=[[]]),
    "unknown token": text("prompt", prompt=[VOCAB_SIZE]),
    "negative token": text("prompt", prompt=[-1]),
    "long salt": text("cache_salt", cache_salt="x" * 257),
}


def check_error(response: httpx.Response, status: int, code: str) -> Json:
    """OpenAI's shape, and nothing but it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert list(response.json()) == ["error"]
    error: Json = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == code
    return error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", FAULTS)
def test_a_client_s_fault_is_named(house: CaseHouse, name: str, stream: bool) -> None:
    """Case 24. Status, field and code say what is wrong, before any stream begins."""
    fault = FAULTS[name]
    body = {"model": house.router.model, "stream": stream} | fault.fields
    response = house.run(house.router.http.post(fault.path, json=body))
    error = check_error(response, fault.status, fault.code)
    assert error["param"] == fault.param


def test_options_of_a_stream_need_one(house: CaseHouse) -> None:
    """Case 24. The one fault that a stream can't have."""
    body = {"model": house.router.model, "prompt": "Hello", "stream_options": {}}
    response = house.run(house.router.http.post(COMPLETIONS, json=body))
    assert check_error(response, 400, "invalid_request")["param"] == "stream_options"


BROKEN = {
    "half of an object": (b'{"model": ', SAYS_JSON, 400, "invalid_json"),
    "no JSON": (b"Hello", SAYS_JSON, 400, "invalid_json"),
    "nothing": (b"", SAYS_JSON, 400, "invalid_json"),
    "a list": (b"[]", SAYS_JSON, 400, "invalid_request"),
    "not a number": (b'{"prompt": "Hi", "temperature": NaN}', SAYS_JSON, 400, "invalid_type"),
    "infinity": (b'{"prompt": "Hi", "temperature": 1e999}', SAYS_JSON, 400, "invalid_type"),
    "no UTF-8": (b'{"prompt": "\xff"}', SAYS_JSON, 400, "invalid_json"),
    "half a surrogate pair": (b'{"prompt": "\\ud800"}', SAYS_JSON, 400, "invalid_json"),
    "a deep nest": (b"[" * 100_000, SAYS_JSON, 400, "invalid_json"),
    "a form": (b"prompt=Hi", "application/x-www-form-urlencoded", 415, "unsupported_content_type"),
    "plain text": (b'{"prompt": "Hi"}', "text/plain", 415, "unsupported_content_type"),
    "too much": (b" " * (MAX_BODY_BYTES + 1), SAYS_JSON, 413, "body_too_large"),
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_a_body_that_is_no_request_is_refused(house: CaseHouse, name: str, path: str) -> None:
    """Case 24. Whatever the bytes are."""
    data, content_type, status, code = BROKEN[name]
    if path == CHAT:
        data = data.replace(b'"prompt": "', b'"messages": [], "user": "')
    if code == "invalid_type":
        data = data.replace(b"{", b'{"model": "m", ')
    request = house.router.http.post(path, content=data, headers={"content-type": content_type})
    check_error(house.run(request), status, code)


def test_a_body_of_unknown_length_is_bounded_too(house: CaseHouse) -> None:
    """Case 24. Sent in pieces, it is refused once it is too long."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(MAX_BODY_BYTES // 10_000 + 1):
            yield b" " * 10_000

    async def test() -> None:
        response = await house.router.http.post(
            CHAT, content=pieces(), headers={"content-type": SAYS_JSON}
        )
        check_error(response, 413, "body_too_large")

    house.run(test())


def test_a_content_type_with_a_charset_or_none_at_all_is_fine(house: CaseHouse) -> None:
    """Case 24. Only what says that it is something else is refused."""
    body = json.dumps({"model": "no such model", "prompt": "Hello"}).encode()
    for headers in ({}, {"content-type": "Application/JSON; charset=utf-8"}):
        response = house.run(house.router.http.post(COMPLETIONS, content=body, headers=headers))
        check_error(response, 404, "model_not_found")


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [("GET", CHAT, 405, "method_not_allowed"), ("POST", "/v1/nothing", 404, "unknown_url")],
)
def test_what_isn_t_there_is_told_in_the_same_shape(
    house: CaseHouse, method: str, path: str, status: int, code: str
) -> None:
    """Case 24. Paths and methods as well as bodies."""
    response = house.run(house.router.http.request(method, path))
    check_error(response, status, code)
