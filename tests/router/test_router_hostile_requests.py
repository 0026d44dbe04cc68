"""What somebody would send who wants the router to break, to stall or to grow: refused, cheaply."""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest
from fakes_house import MODEL, House, Texts, house
from fakes_pull import DEADLINE_S
from pydantic import BaseModel, ValidationError

from core.errors import BadRequestError
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc
from router.http.batches import BatchBody
from router.http.responses_schema import ResponsesBody
from router.http.schema import ChatBody, CompletionBody
from router.http.tokenization import DetokenizeBody, TokenizeBody
from router.inner_json import MAX_DEPTH
from router.life.choice import Delta
from router.life.merged import merged
from router.request_spec import MAX_USER_LENGTH

Json = dict[str, Any]
HELLO: Json = {"role": "user", "content": "Hello"}
CHAT: Json = {"model": MODEL, "messages": [HELLO], "max_tokens": 2}
COMPLETION: Json = {"model": MODEL, "prompt": "Hello", "max_tokens": 2}
RESPONSE: Json = {"model": MODEL, "input": "Hello", "max_output_tokens": 2}
FUNCTION: Json = {"name": "f", "parameters": {"minimum": "HERE"}}
BODIES = (ChatBody, CompletionBody, ResponsesBody, TokenizeBody, DetokenizeBody, BatchBody)


def in_house(texts: Texts, test: Callable[[House], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with house(texts, **settings) as h:
            await test(h)
            assert await h.router.door.drained(DEADLINE_S)

    asyncio.run(run())


def many_faults() -> Iterator[object]:
    """Values with many things wrong, whatever is expected of them."""
    unknown = {f"field {i}": 1 for i in range(300)}
    yield unknown
    few: tuple[object, ...] = (1.5, "a", 7, None, {})
    yield from ([item] * 300 for item in few)
    large: tuple[object, ...] = ([1.5] * 50, ["a"] * 50, unknown)
    yield from ([item] * 20 for item in large)
    for fields in (
        {"type": "function", "function": unknown},
        {"role": "user", "content": [unknown] * 20},
        {"type": "message", "role": "user", "content": [1] * 100},
    ):
        yield [fields] * 20
        yield fields


def num_faults(kind: type[BaseModel], body: str) -> int:
    try:
        kind.model_validate_json(body)
    except ValidationError as error:
        return error.error_count()
    except BadRequestError:  # a part of it that names its fault itself
        return 1
    return 0


@pytest.mark.parametrize("kind", BODIES)
def test_a_body_full_of_faults_is_given_up_at_the_first_ones(kind: type[BaseModel]) -> None:
    """Each that is collected takes memory; a body of 16 MB has room for millions."""
    names = [field.alias or name for name, field in kind.model_fields.items()]
    for value in many_faults():
        text = json.dumps(value)
        for name in names:
            assert num_faults(kind, f'{{"{name}": {text}}}') <= 30, (name, text[:80])
    assert num_faults(kind, json.dumps({f"field {i}": 1 for i in range(300)})) == 1


NOT_FINITE = ["NaN", "Infinity", "-Infinity", "1e999"]
HOLDING: list[tuple[str, Json, str]] = [
    ("/v1/responses", RESPONSE | {"tools": [{"type": "function"} | FUNCTION]}, "tools"),
    (
        "/v1/responses",
        RESPONSE
        | {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"a": "HERE"}}}},
        "text",
    ),
    ("/v1/responses", RESPONSE | {"chat_template_kwargs": {"a": "HERE"}}, "chat_template_kwargs"),
    (
        "/v1/chat/completions",
        CHAT | {"tools": [{"type": "function", "function": FUNCTION}]},
        "tool",
    ),
    ("/v1/chat/completions", CHAT | {"chat_template_kwargs": {"a": ["HERE"]}}, "chat_template"),
    ("/v1/completions", COMPLETION | {"guided_json": {"maximum": "HERE"}}, "guided_json"),
    (
        "/v1/completions",
        COMPLETION | {"structured_outputs": {"json": {"maximum": "HERE"}}},
        "structured_outputs",
    ),
    ("/v1/completions", COMPLETION | {"guided_json": '{"maximum": HERE}'}, "guided_json"),
    ("/v1/completions", COMPLETION | {"temperature": "HERE"}, "temperature"),
    ("/tokenize", {"messages": [HELLO], "chat_template_kwargs": {"a": "HERE"}}, "chat_template"),
]


def test_numbers_that_json_has_no_word_for_are_refused_everywhere(texts: Texts) -> None:
    """An answer that tells a client its own fields again could not be written otherwise."""

    async def test(h: House) -> None:
        for number, (path, body, param) in itertools.product(NOT_FINITE, HOLDING):
            content = json.dumps(body).replace('"HERE"', number).replace("HERE", number)
            headers = {"content-type": "application/json"}
            response = await h.http.post(path, content=content, headers=headers)
            assert response.status_code == 400, (path, body, response.text)
            assert response.json()["error"]["param"].startswith(param)

    in_house(texts, test)


DEPTHS = (MAX_DEPTH - 5, MAX_DEPTH + 5, 900, *range(930, 1000, 6), 3000, 100_000)


def test_json_within_a_text_is_no_way_to_nest_deeper(texts: Texts) -> None:
    """Whoever walks it calls itself at every level, from deeper down than who parsed it."""

    async def status(h: House, depth: int) -> int:
        arguments = '{"a": ' + "[" * depth + "]" * depth + "}"
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
        messages = [HELLO, {"role": "assistant", "tool_calls": [call]}]
        response = await h.http.post("/v1/chat/completions", json=CHAT | {"messages": messages})
        schema = COMPLETION | {"guided_json": arguments}
        assert (await h.http.post("/v1/completions", json=schema)).status_code == 400
        return response.status_code

    async def test(h: House) -> None:
        for depth in DEPTHS:
            assert await status(h, depth) == (200 if depth < MAX_DEPTH else 400), depth

    in_house(texts, test, overrides={"guard": {"enabled": True}})


def test_json_within_a_grpc_message_is_no_way_to_nest_deeper(texts: Texts) -> None:
    async def status(stub: Any, request: pb.CompleteRequest) -> grpc.StatusCode:
        try:
            async for _ in stub.Complete(request):
                pass
        except grpc.aio.AioRpcError as error:
            code: grpc.StatusCode = error.code()
            return code
        return grpc.StatusCode.OK

    async def test(h: House) -> None:
        message = pb.ChatMessage(role="user", content="Hello")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{h.ports.grpc}") as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            for depth in DEPTHS:
                text = '{"a": ' + "[" * depth + "]" * depth + "}"
                right = (
                    grpc.StatusCode.OK if depth < MAX_DEPTH else grpc.StatusCode.INVALID_ARGUMENT
                )
                tool = pb.Tool(name="f", parameters=text)
                for chat, tools in (
                    (pb.Chat(messages=[message], chat_template_kwargs=text), []),
                    (pb.Chat(messages=[message]), [tool]),
                ):
                    request = pb.CompleteRequest(model=MODEL, max_tokens=2, chat=chat, tools=tools)
                    assert await status(stub, request) is right, depth

    in_house(texts, test, overrides={"guard": {"enabled": True}})


class Refused:
    """A prompt that fails by itself, at once or just as others end it: `asyncio.wait_for` raises
    what it waited for when that is there already."""

    def __init__(self, *, at_once: bool) -> None:
        self._at_once = at_once

    async def deltas(self) -> AsyncGenerator[Delta, None]:
        if not self._at_once:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise BadRequestError("late") from None
        raise BadRequestError("first")
        yield  # never reached: it makes this a generator


def test_prompts_that_fail_together_leave_no_failure_unheard() -> None:
    """Python writes a traceback into the log when it throws such a task away."""
    unheard: list[object] = []

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
        prompts: Any = [Refused(at_once=False), Refused(at_once=True), Refused(at_once=False)]
        with pytest.raises(BadRequestError, match="first"):
            async for _ in merged(prompts):
                pass
        gc.collect()

    asyncio.run(run())
    assert not unheard


def test_a_user_s_name_is_short(texts: Texts) -> None:
    """It is remembered with the last requests: five hundred of 16 MB would be 8 GB."""

    async def test(h: House) -> None:
        for path, body in (
            ("/v1/chat/completions", CHAT),
            ("/v1/completions", COMPLETION),
            ("/v1/responses", RESPONSE),
        ):
            for name in ("user", "safety_identifier"):
                for length, status in ((MAX_USER_LENGTH, 200), (MAX_USER_LENGTH + 1, 400)):
                    response = await h.http.post(path, json=body | {name: "x" * length})
                    assert response.status_code == status, response.text
                assert response.json()["error"]["param"] == name
        async with grpc.aio.insecure_channel(f"127.0.0.1:{h.ports.grpc}") as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            request = pb.CompleteRequest(model=MODEL, prompt="x", user="x" * (MAX_USER_LENGTH + 1))
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in stub.Complete(request):
                    pass
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    in_house(texts, test)


def test_ids_of_no_token_are_refused_where_a_guard_reads_them_first(texts: Texts) -> None:
    async def test(h: House) -> None:
        for token_id in (-1, 2**32, 2**70):
            body = COMPLETION | {"prompt": [token_id]}
            response = await h.http.post("/v1/completions", json=body)
            assert response.status_code == 400, response.text
            assert response.json()["error"]["param"] == "prompt"

    in_house(texts, test, overrides={"guard": {"enabled": True}})


def test_an_unknown_path_is_a_404_whatever_host_is_named(texts: Texts) -> None:
    async def test(h: House) -> None:
        for host in ("[", "a b", "[::1", "x:99999", "\u00bd"):
            reader, writer = await asyncio.open_connection("127.0.0.1", h.ports.http)
            head = f"GET /nope HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
            writer.write(head.encode("latin-1"))
            async with asyncio.timeout(DEADLINE_S):
                answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 404 "), answer
            writer.close()
            await writer.wait_closed()

    in_house(texts, test)


def test_what_can_t_be_read_of_a_query_is_named_in_the_same_shape(texts: Texts) -> None:
    async def test(h: House) -> None:
        for limit in ("many", "9" * 5000, "1.5"):
            response = await h.http.get("/debug/requests", params={"limit": limit})
            assert response.status_code == 400
            error = response.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert error["param"] == "limit"

    in_house(texts, test)
