"""Tools, structure and reasoning in /v1/responses: the chat's, in items of their own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fakes_house import MODEL, House, Texts, house
from fakes_language import FakeLanguage

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "name": "weather", "parameters": SCHEMA},
    {"type": "function", "name": "time", "description": "What time it is."},
]
CALLS = (
    'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
)
ASK: dict[str, Any] = {"model": MODEL, "input": "How is the weather?", "tools": TOOLS}


def saying(texts: Texts, text: str) -> FakeLanguage:
    """A model that says this, and then ends."""
    tokens = texts.tokenizer.encode(text, add_special_tokens=False)
    return FakeLanguage(script=dict(enumerate([*tokens, 2])))


def in_house(texts: Texts, test: Callable[[House], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with house(texts, **settings) as h:
            await test(h)

    asyncio.run(run())


def test_calls_are_items_streamed_and_whole(texts: Texts) -> None:
    async def test(h: House) -> None:
        answer = await h.openai.responses.create(**ASK)
        message, weather, time = answer.output
        assert message.type == "message" and answer.output_text.strip() == "I look."
        assert weather.type == time.type == "function_call"
        assert (weather.name, json.loads(weather.arguments)) == ("weather", {"city": "Paris"})
        assert (time.name, json.loads(time.arguments)) == ("time", {})
        assert weather.call_id != time.call_id
        assert answer.status == "completed"
        assert [tool.type for tool in answer.tools] == ["function", "function"]

        stream = await h.openai.responses.create(**ASK, stream=True)
        events = [event async for event in stream]
        last = events[-1]
        assert last.type == "response.completed"
        again = [item.model_dump(exclude={"id", "call_id"}) for item in last.response.output]
        assert again == [item.model_dump(exclude={"id", "call_id"}) for item in answer.output]
        pieces: dict[str, str] = {}
        for event in events:
            if event.type == "response.function_call_arguments.delta":
                pieces[event.item_id] = pieces.get(event.item_id, "") + event.delta
        done = [e for e in events if e.type == "response.function_call_arguments.done"]
        assert [pieces[event.item_id] for event in done] == [event.arguments for event in done]

    in_house(texts, test, language=saying(texts, CALLS))


def test_a_round_of_calls_and_their_results_goes_on(texts: Texts) -> None:
    async def test(h: House) -> None:
        first = await h.openai.responses.create(**ASK)
        history: Any = [{"role": "user", "content": "How is the weather?"}, *first.output]
        for item in first.output:
            if item.type == "function_call":
                output = {"type": "function_call_output", "call_id": item.call_id}
                history.append(output | {"output": f"result of {item.name}"})
        second = await h.openai.responses.create(**(ASK | {"input": history}))
        assert second.status == "completed"
        prompt = texts.tokenizer.decode(h.p.attempts[1].token_ids)
        assert "result of weather" in prompt and "result of time" in prompt
        assert "Paris" in prompt and "I look." in prompt

    in_house(texts, test, language=saying(texts, CALLS))


def test_reasoning_is_an_item_before_the_message(texts: Texts) -> None:
    async def test(h: House) -> None:
        ask = {"model": MODEL, "input": "Think"}
        answer = await h.openai.responses.create(**ASK | ask)
        reasoning, message = answer.output
        assert reasoning.type == "reasoning" and reasoning.content is not None
        assert [part.text.strip() for part in reasoning.content] == ["Hm, well."]
        assert message.type == "message" and answer.output_text.strip() == "Yes."
        assert answer.usage is not None
        assert answer.usage.output_tokens_details.reasoning_tokens > 0
        history: Any = [{"role": "user", "content": "Think"}, *answer.output]
        history.append({"role": "user", "content": "Again"})
        assert (await h.openai.responses.create(model=MODEL, input=history)).output_text

    settings = {"model": {"reasoning_parser": "think"}}
    language = saying(texts, "<think>Hm, well.</think>Yes.")
    in_house(texts, test, language=language, overrides=settings)


@pytest.mark.parametrize(
    "fields",
    [
        {"text": {"format": {"type": "json_object"}}},
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
        {"tools": TOOLS, "tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": {"type": "function", "name": "time"}},
    ],
)
def test_structure_is_the_chat_s(texts: Texts, fields: dict[str, Any]) -> None:
    async def test(h: House) -> None:
        body = {"model": MODEL, "input": "x", "max_output_tokens": 2} | fields
        response = await h.http.post("/v1/responses", json=body)
        assert response.status_code == 200, response.text
        assert h.p.attempts[0].grammar
        for key in ("text", "tool_choice"):
            if key in fields:
                assert response.json()[key] == fields[key]

    in_house(texts, test)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "x"}}}},
            "text.format",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "name": "no"}}, "tool_choice"),
        (
            {"input": [{"type": "function_call_output", "call_id": "1", "output": 3}]},
            "input.0.output",
        ),
    ],
)
def test_faults_name_the_fields_of_this_api(
    texts: Texts, fields: dict[str, Any], param: str
) -> None:
    async def test(h: House) -> None:
        body = {"model": MODEL, "input": "x", "max_output_tokens": 2} | fields
        response = await h.http.post("/v1/responses", json=body)
        assert response.status_code == 400, response.text
        assert response.json()["error"]["param"] == param, response.text

    in_house(texts, test)
