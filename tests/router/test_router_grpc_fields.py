"""Every field of the gRPC API means what its row in docs/FIELDS.md says: the same as over HTTP."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
import pytest
from fakes_fields_table import rows
from fakes_house import MODEL, House, Texts, house
from fakes_language import FakeLanguage
from fakes_told import Json, Told, whole_chat, whole_completion

from core.request import Attempt
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc

PROMPT = "Once upon a time"
LANGUAGE = FakeLanguage(script={3: 2000, 5: 17, 6: 1})
CHAT = pb.Chat(messages=[pb.ChatMessage(role="user", content="Hello")])
MESSAGES = [{"role": "user", "content": "Hello"}]
UNFINISHED = [*MESSAGES, {"role": "assistant", "content": "Well, I"}]
HOUSE: Json = {
    "language": LANGUAGE,
    "overrides": {"router": {"trust_request_chat_template": True}},
}


@dataclass(frozen=True)
class Case:
    """One request in both protocols; what isn't given is as in `BASE`."""

    http: Json
    grpc: Json = dataclasses.field(default_factory=dict)
    sampling: Json = dataclasses.field(default_factory=dict)
    chat: pb.Chat | None = None


def sampling(**fields: Any) -> Case:
    return Case(fields, sampling=fields)


def same(**fields: Any) -> Case:
    return Case(fields, fields)


def beams(n: int = 1, **fields: Any) -> Case:
    given = {"use_beam_search": True} | fields
    return Case(given | {"n": n, "max_tokens": 3}, {"n": n, "max_tokens": 3}, given)


def chatting(http: Json, **fields: Any) -> Case:
    given = {"messages": CHAT.messages} | fields
    return Case({"messages": MESSAGES} | http, chat=pb.Chat(**given))


def calling(http: Json, grpc_fields: Json) -> Case:
    tools = [{"type": "function", "function": {"name": "f"}}]
    return Case(
        {"messages": MESSAGES, "tools": tools} | http,
        {"tools": [pb.Tool(name="f")]} | grpc_fields,
        chat=CHAT,
    )


CASES: dict[str, list[Case]] = {
    "model": [same()],
    "prompt": [Case({"prompt": PROMPT}, {"prompt": PROMPT})],
    "token_ids": [Case({"prompt": [5, 6, 7]}, {"token_ids": pb.TokenIds(ids=[5, 6, 7])})],
    "n": [same(n=3)],
    "max_tokens": [same(max_tokens=3), same(max_tokens=0, echo=True)],
    "stop": [same(stop=["e", "x"])],
    "priority": [same(priority=-3)],
    "cache_salt": [same(cache_salt="salty")],
    "cache_control": [
        Case(
            {"cache_control": {"type": "ephemeral", "ttl": ttl}},
            {"cache_control": pb.CacheControl(ttl=ttl)},
        )
        for ttl in ("5m", "1h")
    ],
    "user": [same(user="somebody")],
    "include_timings": [same(include_timings=True)],
    "include_stop_str_in_output": [same(include_stop_str_in_output=True, stop=["e"])],
    "skip_special_tokens": [same(skip_special_tokens=False)],
    "truncate_prompt_tokens": [same(truncate_prompt_tokens=2), same(truncate_prompt_tokens=-1)],
    "add_special_tokens": [same(add_special_tokens=False)],
    "echo": [same(echo=True, n=2)],
    "return_prompt_token_ids": [
        Case({"return_token_ids": True}, {"return_prompt_token_ids": True})
    ],
    "chat.messages": [
        chatting({}),
        chatting(
            {"messages": [MESSAGES[0] | {"cache_control": {"type": "ephemeral"}}]},
            messages=[
                pb.ChatMessage(role="user", content="Hello", cache_control=pb.CacheControl())
            ],
        ),
    ],
    "chat.add_generation_prompt": [
        chatting({"add_generation_prompt": False}, add_generation_prompt=False)
    ],
    "chat.continue_final_message": [
        chatting(
            {"continue_final_message": True, "messages": UNFINISHED},
            continue_final_message=True,
            messages=[*CHAT.messages, pb.ChatMessage(role="assistant", content="Well, I")],
        )
    ],
    "chat.chat_template": [
        chatting(
            {"chat_template": "{{ messages[0].content }}"},
            chat_template="{{ messages[0].content }}",
        )
    ],
    "chat.chat_template_kwargs": [
        chatting({"chat_template_kwargs": {"mood": [1]}}, chat_template_kwargs='{"mood": [1]}')
    ],
    "sampling.temperature": [sampling(temperature=0.0), sampling(temperature=0.7)],
    "sampling.top_p": [sampling(top_p=0.5)],
    "sampling.top_k": [sampling(top_k=0), sampling(top_k=9)],
    "sampling.min_p": [sampling(min_p=0.1)],
    "sampling.presence_penalty": [sampling(presence_penalty=-1.0)],
    "sampling.frequency_penalty": [sampling(frequency_penalty=0.5)],
    "sampling.repetition_penalty": [sampling(repetition_penalty=1.5)],
    "sampling.logit_bias": [Case({"logit_bias": {"7": -3.0}}, sampling={"logit_bias": {7: -3.0}})],
    "sampling.logprobs": [sampling(logprobs=0), sampling(logprobs=2)],
    "sampling.seed": [sampling(seed=-1)],
    "sampling.min_tokens": [sampling(min_tokens=5, stop_token_ids=[2000])],
    "sampling.stop_token_ids": [sampling(stop_token_ids=[2000])],
    "sampling.ignore_eos": [sampling(ignore_eos=True)],
    "sampling.bad_words": [sampling(bad_words=["wolf", "a b"])],
    "sampling.allowed_token_ids": [sampling(allowed_token_ids=[9, 5])],
    "sampling.prompt_logprobs": [sampling(prompt_logprobs=0), sampling(prompt_logprobs=2)],
    "sampling.best_of": [sampling(best_of=3)],
    "sampling.use_beam_search": [beams(), beams(n=2)],
    "sampling.length_penalty": [beams(length_penalty=0.5)],
    "sampling.early_stopping": [beams(early_stopping=True)],
    "output_format": [
        Case(
            {"response_format": {"type": "json_object"}},
            {"output_format": pb.OutputFormat(json_object=True)},
        ),
        Case(
            {"structured_outputs": {"regex": "[a-z]+"}},
            {"output_format": pb.OutputFormat(regex="[a-z]+")},
        ),
    ],
    "tools": [calling({}, {})],
    "tool_choice": [
        calling({"tool_choice": "required"}, {"tool_choice": pb.ToolChoice(mode="required")})
    ],
    "parallel_tool_calls": [
        calling({"parallel_tool_calls": False}, {"parallel_tool_calls": False})
    ],
}


def test_there_is_a_case_for_every_field() -> None:
    assert {name for row in rows() for name in row.grpc} == CASES.keys()


def test_every_field_asks_the_workers_for_the_same_and_tells_the_same(texts: Texts) -> None:
    async def test(h: House, channel: grpc.aio.Channel) -> None:
        for name, cases in CASES.items():
            for case in cases:
                over_http = await ask_http(h, case)
                asked = h.p.attempts[-1]
                over_grpc = await ask_grpc(channel, case)
                assert _alike(asked) == _alike(h.p.attempts[-1]), name
                assert over_http == over_grpc, name

    in_house(texts, test)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"sampling": pb.Sampling(best_of=129)}, "best_of"),
        ({"sampling": pb.Sampling(best_of=2), "n": 3}, "best_of"),
        ({"sampling": pb.Sampling(bad_words=[" "])}, "bad_words"),
        ({"sampling": pb.Sampling(allowed_token_ids=[10**6])}, "allowed_token_ids"),
        ({"sampling": pb.Sampling(prompt_logprobs=21)}, "prompt_logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"sampling": pb.Sampling(length_penalty=2.0)}, "length_penalty"),
        ({"sampling": pb.Sampling(early_stopping=True)}, "early_stopping"),
        ({"sampling": pb.Sampling(use_beam_search=True, top_k=3)}, "top_k"),
        ({"sampling": pb.Sampling(use_beam_search=True), "n": 33}, "n"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"cache_control": pb.CacheControl(ttl="2h")}, "cache_control"),
        (
            {
                "chat": pb.Chat(
                    messages=[
                        pb.ChatMessage(
                            role="user", content="x", cache_control=pb.CacheControl(ttl="1d")
                        )
                    ]
                )
            },
            "cache_control",
        ),
        (
            {"chat": pb.Chat(messages=CHAT.messages, chat_template_kwargs="[1]")},
            "chat_template_kwargs",
        ),
        (
            {"chat": pb.Chat(messages=CHAT.messages, chat_template_kwargs="{")},
            "chat_template_kwargs",
        ),
        (
            {
                "chat": pb.Chat(
                    messages=CHAT.messages, add_generation_prompt=True, continue_final_message=True
                )
            },
            "continue_final_message",
        ),
    ],
)
def test_faults_name_the_field(texts: Texts, fields: Json, param: str) -> None:
    async def test(h: House, channel: grpc.aio.Channel) -> None:
        given: Json = {"model": MODEL, "prompt": PROMPT} | fields
        request = pb.CompleteRequest(**given)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await told_by(channel, request)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert dict(caught.value.trailing_metadata() or ())["tandem-param"] == param

    in_house(texts, test)


def in_house(texts: Texts, test: Callable[[House, grpc.aio.Channel], Awaitable[None]]) -> None:
    async def run() -> None:
        async with (
            house(texts, **HOUSE) as h,
            grpc.aio.insecure_channel(f"127.0.0.1:{h.ports.grpc}") as channel,
        ):
            await test(h, channel)

    asyncio.run(run())


async def ask_http(h: House, case: Case) -> dict[int, Json]:
    """With token ids, which gRPC always tells."""
    fields = {"max_tokens": 8, "seed": 1} | case.http
    if case.chat is None:
        told = await whole_completion(h, **({"prompt": PROMPT, "return_token_ids": True} | fields))
    else:
        told = await whole_chat(h, return_token_ids=True, **fields)
    return {index: _choice(told, index, case) for index in told.choices}


def _choice(told: Told, index: int, case: Case) -> Json:
    choice = told.choices[index]
    scores = choice.get("prompt_logprobs")
    return {
        "text": choice["text"],
        "token_ids": choice["token_ids"],
        "finish_reason": choice["finish_reason"],
        "logprobs": choice.get("token_logprobs") if not case.http.get("echo") else None,
        "prompt": choice["prompt_token_ids"] if case.http.get("return_token_ids") else [],
        "scores": [
            [entry["logprob"] for entry in score.values()] for score in (scores or [None])[1:]
        ],
    }


async def ask_grpc(channel: grpc.aio.Channel, case: Case) -> dict[int, Json]:
    given: Json = {"model": MODEL, "max_tokens": 8} | case.grpc
    if case.chat is not None:
        given["chat"] = case.chat
    elif "token_ids" not in given:
        given["prompt"] = PROMPT
    sampling: Json = {"seed": 1} | case.sampling
    given["sampling"] = pb.Sampling(**sampling)
    return await told_by(channel, pb.CompleteRequest(**given))


async def told_by(channel: grpc.aio.Channel, request: pb.CompleteRequest) -> dict[int, Json]:
    """Each choice as `_choice` has it."""
    prompt = pb.Prompt()
    choices: dict[int, Json] = {}
    async for event in inference_pb2_grpc.InferenceStub(channel).Complete(request):
        if event.HasField("prompt"):
            assert not choices, "the prompt comes first"
            prompt = event.prompt
        elif event.HasField("delta"):
            delta = event.delta
            choice = choices.setdefault(
                delta.choice, {"text": "", "token_ids": [], "logprobs": None}
            )
            choice["text"] += delta.text
            choice["token_ids"] += delta.token_ids
            choice["finish_reason"] = delta.finish_reason or None
            if delta.logprobs:
                before = choice["logprobs"] or []
                choice["logprobs"] = before + [p.logprob for p in delta.logprobs]
    for choice in choices.values():
        choice["prompt"] = list(prompt.token_ids)
        choice["scores"] = [[p.logprob, *(t.logprob for t in p.top)] for p in prompt.logprobs]
    return choices


def _alike(attempt: Attempt) -> Attempt:
    """Without what differs between two requests."""
    return dataclasses.replace(attempt, request_id="", transfer_id="", deadline_s=0.0)
