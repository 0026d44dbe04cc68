"""Structure and tools over real HTTP with the real `openai` package, and what workers are sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import grpc.aio
import openai
import pydantic
import pytest
from fakes_house import MODEL, House, Texts, house
from fakes_language import FakeLanguage
from openai.types.chat import ChatCompletionMessage

from protos import inference_pb2 as pb
from protos import inference_pb2_grpc
from text.structure.compiler import GrammarCompiler
from text.structure.vocabulary import grammar_vocabulary

MESSAGES: list[Any] = [{"role": "user", "content": "How is the weather?"}]
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
TIME: Any = {"type": "function", "function": {"name": "time", "description": "What time it is."}}
CALLS = (
    'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>'
)
FIELDS: list[dict[str, Any]] = [
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
    {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
        }
    },
    {"extra_body": {"structured_outputs": {"json": SCHEMA}}},
    {"extra_body": {"structured_outputs": {"regex": "[0-9]{3}"}}},
    {"extra_body": {"structured_outputs": {"choice": ["a", "b"]}}},
    {"extra_body": {"structured_outputs": {"grammar": 'start: "a"'}}},
    {"extra_body": {"structured_outputs": {"json_object": True}}},
    {"extra_body": {"guided_json": json.dumps(SCHEMA)}},
    {"extra_body": {"guided_regex": "[0-9]{3}"}},
    {"extra_body": {"guided_choice": ["a", "b"]}},
    {"extra_body": {"guided_grammar": 'root ::= "a"'}},
]


def saying(texts: Texts, text: str) -> FakeLanguage:
    """A model that says this, and then ends."""
    tokens = texts.tokenizer.encode(text, add_special_tokens=False)
    return FakeLanguage(script=dict(enumerate([*tokens, 2])))


def in_house(texts: Texts, test: Callable[[House], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with house(texts, **settings) as h:
            await test(h)

    asyncio.run(run())


async def whole(h: House, **fields: Any) -> tuple[ChatCompletionMessage, str]:
    answer = await h.openai.chat.completions.create(model=MODEL, messages=MESSAGES, **fields)
    return answer.choices[0].message, answer.choices[0].finish_reason


async def accumulated(h: House, **fields: Any) -> tuple[dict[str, Any], str]:
    """The message that a stream adds up to."""
    stream = await h.openai.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, **fields
    )
    message: dict[str, Any] = {"content": "", "thoughts": "", "calls": []}
    reason = ""
    async for chunk in stream:
        for choice in chunk.choices:
            message["content"] += choice.delta.content or ""
            message["thoughts"] += getattr(choice.delta, "reasoning_content", None) or ""
            for call in choice.delta.tool_calls or ():
                assert call.function is not None
                if call.index == len(message["calls"]):
                    assert call.id and call.type == "function" and call.function.name
                    message["calls"].append([call.function.name, ""])
                else:
                    assert call.id is None and call.function.name is None
                message["calls"][call.index][1] += call.function.arguments or ""
            reason = choice.finish_reason or reason
    return message, reason


@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_every_field_of_structure_reaches_both_workers_as_one_grammar(
    texts: Texts, fields: Mapping[str, Any]
) -> None:
    async def test(h: House) -> None:
        await h.openai.chat.completions.create(
            model=MODEL, messages=MESSAGES, max_tokens=3, **fields
        )
        (prefill,), (decode,) = h.p.attempts, h.d.attempts
        assert prefill.grammar and prefill.grammar == decode.grammar
        card = texts.card
        compiler = GrammarCompiler(lambda: grammar_vocabulary(texts.tokenizer, card.vocab_size))
        assert not compiler.compile(prefill.grammar).start().problem

    in_house(texts, test)


def test_what_has_no_structure_has_no_grammar(texts: Texts) -> None:
    async def test(h: House) -> None:
        await whole(h, max_tokens=2, response_format={"type": "text"})
        await whole(h, max_tokens=2, tools=[WEATHER])
        await whole(h, max_tokens=2, tools=[WEATHER], tool_choice="none")
        assert [a.grammar for a in h.p.attempts] == ["", "", ""]

    in_house(texts, test)


WRONG: list[tuple[dict[str, Any], str, str]] = [
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": {"type": "array", "uniqueItems": True}},
            }
        },
        "response_format",
        "uniqueItems",
    ),
    ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema"),
    ({"extra_body": {"guided_regex": "a("}}, "guided_regex", "unclosed"),
    ({"extra_body": {"guided_json": "{"}}, "guided_json", "JSON"),
    ({"extra_body": {"guided_choice": []}}, "guided_choice", "choose"),
    ({"extra_body": {"structured_outputs": {"grammar": "start: x"}}}, "structured_outputs", "x"),
    (
        {"extra_body": {"guided_regex": "a", "guided_choice": ["b"]}},
        "guided_choice",
        "more than one",
    ),
    ({"extra_body": {"structured_outputs": {"yaml": 1}}}, "structured_outputs", "known"),
    ({"tool_choice": "required"}, "tool_choice", "tools"),
    (
        {"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        "tool_choice",
        "'f'",
    ),
    ({"tools": [TIME, TIME]}, "tools", "two functions"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", "a b"),
    (
        {
            "tools": [
                {
                    "type": "function",
                    "function": {"name": "f", "strict": True, "parameters": {"not": {}}},
                }
            ]
        },
        "tools",
        "not",
    ),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages", "tool_call_id"),
    (
        {"extra_body": {"use_beam_search": True, "guided_regex": "a"}},
        "guided_regex",
        "beam search",
    ),
    ({"extra_body": {"use_beam_search": True}, "tools": [TIME]}, "tools", "beam search"),
]


def test_what_cannot_be_followed_is_a_400_that_says_what(texts: Texts) -> None:
    async def test(h: House) -> None:
        for fields, param, said in WRONG:
            with pytest.raises(openai.BadRequestError) as caught:
                await h.openai.chat.completions.create(
                    **({"model": MODEL, "messages": MESSAGES} | fields)
                )
            assert caught.value.param == param, caught.value
            assert said in caught.value.message
        assert not h.p.attempts, "none of them reached a worker"

    in_house(texts, test)


def test_a_prompt_of_ids_that_are_none_is_refused_first(texts: Texts) -> None:
    async def test(h: House) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            await h.openai.completions.create(
                model=MODEL, prompt=[-578, 541], extra_body={"guided_regex": "a"}
            )
        assert caught.value.param == "prompt"

    in_house(texts, test)


def test_calls_are_read_out_of_the_text_streamed_and_whole(texts: Texts) -> None:
    async def test(h: House) -> None:
        fields: dict[str, Any] = {"tools": [WEATHER, TIME]}
        message, reason = await whole(h, **fields)
        assert message.content == "I look." and reason == "tool_calls"
        calls = [(c.function.name, c.function.arguments) for c in message.tool_calls or ()]  # type: ignore[union-attr]
        assert calls == [("weather", '{"city": "Paris"}'), ("time", "{}")]
        assert len({c.id for c in message.tool_calls or ()}) == 2
        streamed, reason = await accumulated(h, **fields)
        assert reason == "tool_calls" and streamed["content"] == "I look."
        assert [tuple(call) for call in streamed["calls"]] == calls

    in_house(texts, test, language=saying(texts, CALLS))


def test_without_parallel_calls_only_the_first_is_told(texts: Texts) -> None:
    async def test(h: House) -> None:
        message, _ = await whole(h, tools=[WEATHER, TIME], parallel_tool_calls=False)
        assert len(message.tool_calls or ()) == 1

    in_house(texts, test, language=saying(texts, CALLS))


def test_without_tools_nothing_is_read_as_a_call(texts: Texts) -> None:
    async def test(h: House) -> None:
        message, reason = await whole(h)
        assert message.content == CALLS and reason == "stop" and not message.tool_calls

    in_house(texts, test, language=saying(texts, CALLS))


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": "required", "parallel_tool_calls": False},
        {"tool_choice": {"type": "function", "function": {"name": "weather"}}},
        {
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {
                    "mode": "required",
                    "tools": [{"type": "function", "function": {"name": "weather"}}],
                },
            }
        },
    ],
    ids=str,
)
@pytest.mark.parametrize("parser", ["hermes", "llama3", "mistral"])
def test_calls_that_must_be_made_follow_a_grammar_of_the_format(
    texts: Texts, fields: Mapping[str, Any], parser: str
) -> None:
    async def test(h: House) -> None:
        await whole(h, tools=[WEATHER, TIME], max_tokens=2, **fields)
        (attempt,) = h.p.attempts
        card = texts.card
        compiler = GrammarCompiler(lambda: grammar_vocabulary(texts.tokenizer, card.vocab_size))
        forms = {
            "hermes": '<tool_call>\n{"name": "weather", "arguments": {"city": "X"}}\n</tool_call>',
            "llama3": '{"name": "weather", "parameters": {"city": "X"}}',
            "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": {"city": "X"}}]',
        }
        tokens = texts.tokenizer.encode(forms[parser], add_special_tokens=False)
        state = compiler.compile(attempt.grammar).start(tokens)
        assert not state.problem
        assert state.complete or state.completes(2)

    in_house(texts, test, overrides={"model": {"tool_parser": parser}})


@pytest.mark.parametrize("parser", ["hermes", "llama3", "mistral"])
def test_a_strict_function_is_constrained_once_its_call_begins(texts: Texts, parser: str) -> None:
    strict = {"type": "function", "function": WEATHER["function"] | {"strict": True}}

    async def test(h: House) -> None:
        await whole(h, tools=[strict], max_tokens=2)
        (attempt,) = h.p.attempts
        card = texts.card
        compiler = GrammarCompiler(lambda: grammar_vocabulary(texts.tokenizer, card.vocab_size))
        grammar = compiler.compile(attempt.grammar)
        begins = {
            "hermes": '<tool_call>\n{"name": "weather", "arguments": {',
            "llama3": '{"name": "weather", "parameters": {',
            "mistral": '[TOOL_CALLS][{"name": "weather", "arguments": {',
        }

        def fits(text: str) -> bool:
            return not grammar.start(texts.tokenizer.encode(text, False)).problem

        assert fits("It is [nice] <here>, I think.")
        assert fits(begins[parser] + '"city": "X')
        assert not fits(begins[parser] + '"town": "X')

    in_house(texts, test, overrides={"model": {"tool_parser": parser}})


def test_a_conversation_with_calls_and_results_is_told_to_the_model(texts: Texts) -> None:
    async def test(h: House) -> None:
        message, _ = await whole(h, tools=[WEATHER])
        call = (message.tool_calls or [])[0]
        messages = [
            *MESSAGES,
            message.model_dump(),
            {"role": "tool", "tool_call_id": call.id, "content": "Sunny, 21 degrees."},
        ]
        await h.openai.chat.completions.create(
            model=MODEL, messages=messages, tools=[WEATHER], max_tokens=2
        )
        prompt = texts.tokenizer.decode(h.p.attempts[-1].token_ids, skip_special_tokens=False)
        assert '"name": "weather", "arguments": {"city": "Paris"}' in prompt
        assert "Sunny, 21 degrees." in prompt
        assert '"required": ["city"]' in prompt, "the tool is described"

    in_house(texts, test, language=saying(texts, CALLS))


def test_thoughts_come_apart_streamed_and_whole(texts: Texts) -> None:
    async def test(h: House) -> None:
        message, reason = await whole(h)
        assert message.content == "It is sunny." and reason == "stop"
        assert message.reasoning_content == "Let me see."  # type: ignore[attr-defined]
        streamed, _ = await accumulated(h)
        assert streamed["content"] == "It is sunny." and streamed["thoughts"] == "Let me see."

    said = "<think>\nLet me see.\n</think>\n\nIt is sunny."
    settings = {"model": {"reasoning_parser": "think"}}
    in_house(texts, test, language=saying(texts, said), overrides=settings)


def test_structure_begins_where_thoughts_end(texts: Texts) -> None:
    async def test(h: House) -> None:
        await whole(h, response_format={"type": "json_object"}, max_tokens=2)
        (attempt,) = h.p.attempts
        card = texts.card
        compiler = GrammarCompiler(lambda: grammar_vocabulary(texts.tokenizer, card.vocab_size))
        grammar = compiler.compile(attempt.grammar)
        for text in ('{"a": 1}', '<think>Hm {.\n</think>\n\n{"a": 1}'):
            assert grammar.start(texts.tokenizer.encode(text, False)).complete, text
        assert grammar.start(texts.tokenizer.encode("Hm", False)).problem

    in_house(texts, test, overrides={"model": {"reasoning_parser": "think"}})


class City(pydantic.BaseModel):
    """What is asked for, as users of the `openai` package say it."""

    city: str
    kind: Literal["big", "small"]


def test_the_package_s_own_parsing_of_answers_and_calls_works(texts: Texts) -> None:
    async def test(h: House) -> None:
        answer = await h.openai.chat.completions.parse(
            model=MODEL, messages=MESSAGES, response_format=City
        )
        assert answer.choices[0].message.parsed == City(city="Rome", kind="big")
        assert h.p.attempts[-1].grammar
        async with h.openai.chat.completions.stream(
            model=MODEL, messages=MESSAGES, response_format=City
        ) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.parsed == City(city="Rome", kind="big")

    said = '{"city": "Rome", "kind": "big"}'
    in_house(texts, test, language=saying(texts, said))


def test_the_package_s_own_accumulation_of_streamed_calls_works(texts: Texts) -> None:
    async def test(h: House) -> None:
        tools = [openai.pydantic_function_tool(City, name="weather"), TIME]
        async with h.openai.chat.completions.stream(
            model=MODEL, messages=MESSAGES, tools=tools
        ) as stream:
            final = await stream.get_final_completion()
        calls = final.choices[0].message.tool_calls or []
        assert [c.function.name for c in calls] == ["weather", "time"]
        assert json.loads(calls[0].function.arguments) == {"city": "Paris", "kind": "big"}
        assert final.choices[0].finish_reason == "tool_calls"

    said = CALLS.replace('"Paris"', '"Paris", "kind": "big"')
    in_house(texts, test, language=saying(texts, said))


def test_an_answer_that_goes_on_with_open_thoughts_ends_them_first(texts: Texts) -> None:
    async def test(h: House) -> None:
        messages = [*MESSAGES, {"role": "assistant", "content": "<think>Let me"}]
        answer = await h.openai.chat.completions.create(
            model=MODEL,
            messages=messages,
            extra_body={"continue_final_message": True, "add_generation_prompt": False},
        )
        message = answer.choices[0].message
        assert message.content == "Sunny."
        assert message.reasoning_content == "see."  # type: ignore[attr-defined]

    settings = {"model": {"reasoning_parser": "think"}}
    in_house(texts, test, language=saying(texts, " see.</think>\nSunny."), overrides=settings)


def test_grpc_has_structure_tools_and_thoughts_too(texts: Texts) -> None:
    async def test(h: House) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{h.ports.grpc}") as channel:
            stub = inference_pb2_grpc.InferenceStub(channel)
            chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="Weather?")])
            tool = pb.Tool(name="weather", parameters=json.dumps(SCHEMA))
            request = pb.CompleteRequest(model=MODEL, chat=chat, tools=[tool])
            deltas = [e.delta async for e in stub.Complete(request) if e.HasField("delta")]
            calls = [call for delta in deltas for call in delta.tool_calls]
            assert [c.name for c in calls if c.name] == ["weather", "time"]
            first = "".join(c.arguments for c in calls if c.index == 0)
            assert json.loads(first) == {"city": "Paris"}
            assert "".join(d.text for d in deltas) == "I look."
            assert deltas[-1].finish_reason == "tool_calls"
            formats = [
                pb.OutputFormat(json_schema=json.dumps(SCHEMA)),
                pb.OutputFormat(json_object=True),
                pb.OutputFormat(regex="a+"),
                pb.OutputFormat(choice=pb.OutputFormat.Choices(texts=["a", "b"])),
                pb.OutputFormat(grammar='start: "a"'),
            ]
            for wanted in formats:
                request = pb.CompleteRequest(
                    model=MODEL, chat=chat, output_format=wanted, max_tokens=2
                )
                assert [event async for event in stub.Complete(request)]
                assert h.p.attempts[-1].grammar
            request = pb.CompleteRequest(
                model=MODEL, chat=chat, output_format=pb.OutputFormat(regex="a(")
            )
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                async for _ in stub.Complete(request):
                    pass
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            metadata = dict(caught.value.trailing_metadata() or ())
            assert metadata["tandem-param"] == "output_format"

    in_house(texts, test, language=saying(texts, CALLS))
