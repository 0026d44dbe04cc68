"""/v1/responses with the real `openai` package: what it gives is what the model says."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import openai
import pytest
from fakes_house import MODEL, House, Texts, house
from fakes_language import FakeLanguage
from openai.types.responses import Response, ResponseStreamEvent

from core.request import AttemptFailed

ASK: dict[str, Any] = {
    "model": MODEL,
    "input": "Say something",
    "max_output_tokens": 12,
    "extra_body": {"seed": 3},
}


def in_house(texts: Texts, test: Callable[[House], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with house(texts, **settings) as h:
            await test(h)

    asyncio.run(run())


async def streamed(h: House, **fields: Any) -> list[ResponseStreamEvent]:
    stream = await h.openai.responses.create(**(ASK | fields), stream=True)
    return [event async for event in stream]


def whole_of(events: list[ResponseStreamEvent]) -> Response:
    response = events[-1].response  # type: ignore[union-attr]
    assert isinstance(response, Response)
    return response


def without_names(response: Response) -> dict[str, Any]:
    """What two equal answers have in common: all but their ids and times."""
    data = response.model_dump()
    for key in ("id", "created_at", "completed_at"):
        del data[key]
    for item in data["output"]:
        del item["id"]
    return data


def test_an_answer_is_what_the_model_says(texts: Texts) -> None:
    async def test(h: House) -> None:
        answer = await h.openai.responses.create(**ASK)
        prompt = h.p.attempts[0].token_ids
        tokens = FakeLanguage().answer(prompt, 3, 0, 12)
        assert answer.output_text == texts.tokenizer.decode(tokens)
        assert (answer.status, answer.object, answer.model) == ("incomplete", "response", MODEL)
        assert answer.incomplete_details is not None
        assert answer.incomplete_details.reason == "max_output_tokens"
        [message] = answer.output
        assert message.type == "message"
        assert (message.role, message.status) == ("assistant", "incomplete")
        usage = answer.usage
        assert usage is not None
        assert (usage.input_tokens, usage.output_tokens) == (len(prompt), 12)
        assert usage.total_tokens == len(prompt) + 12
        assert usage.input_tokens_details.cached_tokens == 5
        assert usage.output_tokens_details.reasoning_tokens == 0
        rendered = texts.template.render([{"role": "user", "content": "Say something"}])
        assert list(prompt) == texts.tokenizer.encode(rendered, add_special_tokens=False)

    in_house(texts, test, num_cached_tokens=5)


def test_an_answer_that_ends_by_itself_is_completed(texts: Texts) -> None:
    async def test(h: House) -> None:
        text = (await h.openai.responses.create(**ASK)).output_text
        stop = {"seed": 3, "stop": text[8:11]}
        answer = await h.openai.responses.create(**(ASK | {"extra_body": stop}))
        assert (answer.status, answer.incomplete_details) == ("completed", None)
        assert answer.output_text == text.split(text[8:11])[0]
        assert answer.completed_at is not None

    in_house(texts, test)


def test_an_accumulated_stream_is_the_unary_answer(texts: Texts) -> None:
    async def test(h: House) -> None:
        unary = await h.openai.responses.create(**ASK)
        events = await streamed(h)
        assert [e.sequence_number for e in events] == list(range(len(events)))
        assert without_names(whole_of(events)) == without_names(unary)
        text = [e.delta for e in events if e.type == "response.output_text.delta"]
        assert "".join(text) == unary.output_text
        kinds = [e.type for e in events if e.type != "response.output_text.delta"]
        assert kinds == [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.incomplete",
        ]
        assert len(events) > len(kinds) + 3, "text comes as it is made"

    in_house(texts, test)


def test_the_client_s_own_helper_follows_a_stream(texts: Texts) -> None:
    async def test(h: House) -> None:
        text = (await h.openai.responses.create(**ASK)).output_text
        ask = ASK | {"extra_body": {"seed": 3, "stop": text[8:11]}}
        async with h.openai.responses.stream(**ask) as stream:
            final = await stream.get_final_response()
        assert final.output_text == text.split(text[8:11])[0]

    in_house(texts, test)


def test_logprobs_are_shown_to_who_includes_them(texts: Texts) -> None:
    async def test(h: House) -> None:
        include: Any = ["message.output_text.logprobs"]
        answer = await h.openai.responses.create(**ASK, include=include, top_logprobs=2)
        [message] = answer.output
        assert message.type == "message"
        [part] = message.content
        assert part.type == "output_text" and part.logprobs is not None
        assert len(part.logprobs) == 12
        assert all(len(entry.top_logprobs) == 2 for entry in part.logprobs)
        events = await streamed(h, include=include, top_logprobs=2)
        deltas = [e for e in events if e.type == "response.output_text.delta"]
        tokens = [entry.token for e in deltas for entry in e.logprobs]
        assert tokens == [entry.token for entry in part.logprobs]
        assert not (await h.openai.responses.create(**ASK)).output[0].content[0].logprobs

    in_house(texts, test)


def test_instructions_come_first_and_items_are_messages(texts: Texts) -> None:
    async def test(h: House) -> None:
        items: Any = [
            {"role": "user", "content": "One"},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Two", "annotations": []}],
                "id": "msg_1",
                "status": "completed",
            },
            {"role": "developer", "content": [{"type": "input_text", "text": "Three"}]},
        ]
        await h.openai.responses.create(**(ASK | {"input": items}), instructions="Zero")
        rendered = texts.template.render(
            [
                {"role": "system", "content": "Zero"},
                {"role": "user", "content": "One"},
                {"role": "assistant", "content": "Two"},
                {"role": "system", "content": "Three"},
            ]
        )
        tokens = texts.tokenizer.encode(rendered, add_special_tokens=False)
        assert list(h.p.attempts[0].token_ids) == tokens

    in_house(texts, test)


def test_an_answer_s_own_items_can_be_sent_back(texts: Texts) -> None:
    async def test(h: House) -> None:
        first = await h.openai.responses.create(**ASK)
        history: Any = [{"role": "user", "content": "Say something"}, *first.output]
        history.append({"role": "user", "content": "And again"})
        second = await h.openai.responses.create(**(ASK | {"input": history}))
        assert second.status == "incomplete"
        assert first.output_text in texts.tokenizer.decode(h.p.attempts[1].token_ids)

    in_house(texts, test)


def test_sampling_fields_reach_the_worker(texts: Texts) -> None:
    async def test(h: House) -> None:
        extra = {"seed": 7, "top_k": 5, "min_tokens": 2, "stop": ["x y z"]}
        ask = ASK | {"extra_body": extra}
        answer = await h.openai.responses.create(**ask, temperature=0.5, top_p=0.9)
        sampling = h.p.attempts[0].sampling
        assert (sampling.temperature, sampling.top_p, sampling.top_k) == (0.5, 0.9, 5)
        assert (sampling.seed, sampling.min_tokens, sampling.max_tokens) == (7, 2, 12)
        assert (answer.temperature, answer.top_p) == (0.5, 0.9)

    in_house(texts, test)


def test_what_was_asked_is_echoed(texts: Texts) -> None:
    async def test(h: House) -> None:
        answer = await h.openai.responses.create(
            **ASK, metadata={"a": "b"}, instructions="Be brief", user="me", store=False
        )
        assert (answer.metadata, answer.instructions, answer.user) == ({"a": "b"}, "Be brief", "me")
        assert (answer.max_output_tokens, answer.parallel_tool_calls) == (12, True)
        assert (answer.tools, answer.tool_choice) == ([], "auto")
        assert answer.text is not None and answer.text.format is not None
        assert answer.text.format.type == "text"

    in_house(texts, test)


NEEDS_A_STORE: list[tuple[dict[str, Any], str]] = [
    ({"store": True}, "store"),
    ({"background": True}, "background"),
    ({"previous_response_id": "resp_1"}, "previous_response_id"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
]
FAULTS: list[tuple[dict[str, Any], str]] = [
    *NEEDS_A_STORE,
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": 10**6}, "input"),
    ({"temperature": 3}, "temperature"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
    ({"truncation": "auto"}, "truncation"),
    ({"include": ["file_search_call.results"]}, "include"),
    ({"input": []}, "input"),
    ({"input": None}, "input"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input.0.role"),
    ({"input": [{"role": "user"}]}, "input.0.content"),
    ({"input": [{"type": "item_reference", "id": "x"}]}, "input.0"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content"),
    ({"input": "word " * 20_000}, "input"),
    ({"text": {"format": {"type": "xml"}}}, "text.format"),
    ({"metadata": {"k" * 65: "v"}}, "metadata"),
    ({"metadata": {"k": "v" * 513}}, "metadata"),
    ({"metadata": {str(i): "v" for i in range(17)}}, "metadata"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"prompt_cache_retention": "24h"}, "prompt_cache_retention"),
    ({"moderation": {"model": "m"}}, "moderation"),
    ({"unheard_of": 1}, "unheard_of"),
]


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_is_a_400_that_names_the_field(texts: Texts, stream: bool) -> None:
    async def test(h: House) -> None:
        for fields, param in FAULTS:
            body = {"model": MODEL, "input": "Hello", "max_output_tokens": 3, "stream": stream}
            response = await h.http.post("/v1/responses", json=body | fields)
            assert response.status_code == 400, (fields, response.text)
            error = response.json()["error"]
            assert error["param"] == param, (fields, error)
            assert error["type"] == "invalid_request_error"

    in_house(texts, test)


@pytest.mark.parametrize(
    "fields",
    [
        {"store": False},
        {"background": False},
        {"include": ["reasoning.encrypted_content"]},
        {"truncation": "disabled"},
        {"service_tier": "auto"},
        {"prompt_cache_retention": "in_memory", "moderation": None, "image": None},
        {"text": {"format": {"type": "text"}}},
        {"tools": []},
        {"parallel_tool_calls": True},
        {"stream_options": {"include_obfuscation": False}},
        {"prompt_cache_key": "k", "safety_identifier": "s", "max_tool_calls": 3},
        {"input": [{"role": "user", "content": "x"}], "reasoning": {"effort": None}},
    ],
)
def test_what_asks_for_nothing_is_accepted(texts: Texts, fields: dict[str, Any]) -> None:
    async def test(h: House) -> None:
        body = {"model": MODEL, "input": "Hello", "max_output_tokens": 3}
        response = await h.http.post("/v1/responses", json=body | fields)
        assert response.status_code == 200, response.text

    in_house(texts, test)


def test_an_unknown_model_is_a_404(texts: Texts) -> None:
    async def test(h: House) -> None:
        with pytest.raises(openai.NotFoundError) as caught:
            await h.openai.responses.create(**(ASK | {"model": "other"}))
        assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
        with pytest.raises(openai.NotFoundError) as caught:
            await h.openai.responses.retrieve("resp_1")
        assert caught.value.code == "response_not_found"

    in_house(texts, test)


def test_a_failure_midway_is_the_stream_s_last_event(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.d.failures.append(AttemptFailed("", "internal_error", "a bug", False))
        events = await streamed(h)
        assert events[0].type == "response.created"
        assert [e.sequence_number for e in events] == list(range(len(events)))
        last = events[-1]
        assert last.type == "response.failed"
        assert (last.response.status, last.response.output[0].status) == ("failed", "incomplete")  # type: ignore[union-attr]
        assert last.response.error is not None
        assert (last.response.error.code, last.response.error.message) == (
            "internal_error",
            "a bug",
        )

    in_house(texts, test)


def test_a_failure_before_the_first_token_is_a_status(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.failures.append(AttemptFailed("", "internal_error", "a bug", False))
        with pytest.raises(openai.InternalServerError):
            await streamed(h)

    in_house(texts, test)


def test_include_timings_adds_them(texts: Texts) -> None:
    async def test(h: House) -> None:
        body = {"model": MODEL, "input": "Hello", "max_output_tokens": 3, "include_timings": True}
        response: httpx.Response = await h.http.post("/v1/responses", json=body)
        assert response.json()["tandem"]["decode_worker"] == "decode-0"

    in_house(texts, test)
