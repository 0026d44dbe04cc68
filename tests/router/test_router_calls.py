"""Calls of tools, whole, streamed and over gRPC: the same, with one finish reason a choice."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest
from fakes_house import MODEL, House, Texts, house
from fakes_language import FakeLanguage
from fakes_told import Json, streamed_chat, whole_chat

from protos import inference_pb2 as pb
from protos import inference_pb2_grpc

NAMES = ("weather", "time")
TOOLS: list[Json] = [{"type": "function", "function": {"name": name}} for name in NAMES]
TIME: Json = {"type": "function", "function": {"name": "time"}}
ARGUMENTS = ('{"city": "Paris", "days": [1, 2]}', "{}", '{"city": "東京 \\"x\\""}')
SAID = "I look.\n" + "\n".join(
    f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'
    for name, arguments in zip(("weather", "time", "weather"), ARGUMENTS, strict=True)
)
CALLS = [["weather", ARGUMENTS[0]], ["time", ARGUMENTS[1]], ["weather", ARGUMENTS[2]]]

CASES: dict[str, tuple[Json, Json, list[list[str]]]] = {
    "auto": ({}, {}, CALLS),
    "none": ({"tool_choice": "none"}, {"tool_choice": pb.ToolChoice(mode="none")}, []),
    "required": (
        {"tool_choice": "required"},
        {"tool_choice": pb.ToolChoice(mode="required")},
        CALLS,
    ),
    "named": (
        {"tool_choice": TIME},
        {
            "tool_choice": pb.ToolChoice(mode="required", only=["time"]),
            "parallel_tool_calls": False,
        },
        CALLS[:1],
    ),
    "one at a time": ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}, CALLS[:1]),
    "several choices": ({"n": 3}, {"n": 3}, CALLS),
    "cut by the limit": ({"max_tokens": 30}, {"max_tokens": 30}, []),
    "with log-probabilities": ({"logprobs": True}, {"sampling": pb.Sampling(logprobs=0)}, CALLS),
}


@pytest.mark.parametrize("name", CASES)
def test_calls_are_told_alike_whole_streamed_and_over_grpc(texts: Texts, name: str) -> None:
    """Case 18. Nothing follows a finish reason, which `streamed_chat` and `over_grpc` look at."""
    http, fields, calls = CASES[name]

    async def test(h: House) -> None:
        given: Json = {"messages": [{"role": "user", "content": "Hi"}], "tools": TOOLS}
        whole = await whole_chat(h, **given, **http)
        streamed = await streamed_chat(h, **given, **http)
        assert streamed == whole
        told = await over_grpc(h, **fields)
        assert told.keys() == whole.choices.keys() == set(range(http.get("n", 1)))
        for index, choice in whole.choices.items():
            assert told[index] == {key: choice[key] for key in told[index]}
            if name == "cut by the limit":
                assert choice["finish_reason"] == "length" and choice["calls"]
                assert "<tool_call" not in choice["text"]
                continue
            assert choice["calls"] == calls
            assert choice["finish_reason"] == ("tool_calls" if calls else "stop")
            assert ("<tool_call>" in choice["text"]) is not bool(calls)

    in_house(texts, test)


async def over_grpc(h: House, **fields: Any) -> dict[int, Json]:
    """What the deltas of each choice add up to."""
    request = pb.CompleteRequest(
        model=MODEL,
        chat=pb.Chat(messages=[pb.ChatMessage(role="user", content="Hi")]),
        tools=[pb.Tool(name=name) for name in NAMES],
        **fields,
    )
    told: dict[int, Json] = {}
    async with grpc.aio.insecure_channel(f"127.0.0.1:{h.ports.grpc}") as channel:
        async for event in inference_pb2_grpc.InferenceStub(channel).Complete(request):
            if not event.HasField("delta"):
                continue
            delta = event.delta
            choice = told.setdefault(
                delta.choice, {"text": "", "thoughts": "", "calls": [], "finish_reason": None}
            )
            assert choice["finish_reason"] is None, "nothing follows a finish reason"
            choice["text"] += delta.text
            choice["thoughts"] += delta.reasoning
            choice["finish_reason"] = delta.finish_reason or None
            for call in delta.tool_calls:
                if call.index == len(choice["calls"]):
                    assert call.id and call.name
                    choice["calls"].append([call.name, ""])
                else:
                    assert not call.id and not call.name
                choice["calls"][call.index][1] += call.arguments
    return told


def in_house(texts: Texts, test: Any) -> None:
    tokens = texts.tokenizer.encode(SAID, add_special_tokens=False)
    language = FakeLanguage(script=dict(enumerate([*tokens, 2])))

    async def run() -> None:
        async with house(texts, language=language) as h:
            await test(h)

    asyncio.run(run())
