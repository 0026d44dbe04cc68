"""Answers of the real `openai` package in one shape, streamed or whole."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fakes_house import MODEL, House

Json = dict[str, Any]


@dataclass
class Told:
    """All that an answer says: of each choice, and beside them."""

    choices: dict[int, Json] = field(default_factory=dict)
    beside: Json = field(default_factory=dict)


async def whole_chat(h: House, **fields: Any) -> Told:
    answer = await _create(h.openai.chat.completions.create, fields)
    told = Told(beside=_beside(answer))
    for choice in answer["choices"]:
        logprobs = choice["logprobs"]
        message = choice["message"]
        told.choices[choice["index"]] = {
            "text": message["content"] or "",
            "thoughts": message.get("reasoning_content") or "",
            "calls": [_call(call) for call in message["tool_calls"] or ()],
            "finish_reason": choice["finish_reason"],
            "logprobs": logprobs and logprobs["content"],
            "token_ids": choice.get("token_ids"),
        }
    return told


async def streamed_chat(h: House, **fields: Any) -> Told:
    told = Told()
    for event in await stream_events(h.openai.chat.completions.create, fields):
        _add_beside(told, event)
        for choice in event["choices"]:
            delta = choice["delta"]
            gained = {
                "text": delta.get("content") or "",
                "thoughts": delta.get("reasoning_content") or "",
                "calls": [],
                "finish_reason": choice["finish_reason"],
                "logprobs": choice["logprobs"] and choice["logprobs"]["content"],
                "token_ids": choice.get("token_ids"),
            }
            _add(told, choice["index"], gained)
            for call in delta.get("tool_calls") or ():
                _add_call(told.choices[choice["index"]]["calls"], call)
    return told


def _call(call: Json) -> list[str]:
    """Without its id, which no two answers share."""
    assert call["id"] and call["type"] == "function"
    return [call["function"]["name"], call["function"]["arguments"]]


def _add_call(calls: list[list[str]], gained: Json) -> None:
    """The first piece of a call names it, the others add to its arguments."""
    if gained["index"] == len(calls):
        calls.append(_call(gained | {"function": {"arguments": ""} | gained["function"]}))
        return
    assert gained["id"] is None and gained["function"]["name"] is None
    calls[gained["index"]][1] += gained["function"]["arguments"]


async def whole_completion(h: House, **fields: Any) -> Told:
    answer = await _create(h.openai.completions.create, fields)
    told = Told(beside=_beside(answer))
    for choice in answer["choices"]:
        told.choices[choice["index"]] = _completion_choice(choice)
    return told


async def streamed_completion(h: House, **fields: Any) -> Told:
    told = Told()
    for event in await stream_events(h.openai.completions.create, fields):
        _add_beside(told, event)
        for choice in event["choices"]:
            _add(told, choice["index"], _completion_choice(choice))
    return told


def _completion_choice(choice: Json) -> Json:
    told = {name: choice[name] for name in ("text", "finish_reason")}
    for name in ("token_ids", "prompt_token_ids", "prompt_logprobs"):
        told[name] = choice.get(name)
    logprobs = choice["logprobs"] or {}
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        told[name] = logprobs.get(name)
    return told


def _add(told: Told, index: int, gained: Json) -> None:
    known = told.choices.setdefault(index, dict.fromkeys(gained))
    assert known["finish_reason"] is None, "nothing follows a finish reason"
    for name, value in gained.items():
        if value is not None:
            before = known[name]
            known[name] = value if before is None else before + value


def _add_beside(told: Told, event: Json) -> None:
    for name, value in _beside(event).items():
        if value is not None:
            told.beside[name] = value


def _beside(answer: Json) -> Json:
    names = ("usage", "prompt_token_ids", "prompt_logprobs")
    beside = {name: answer.get(name) for name in names}
    return {name: value for name, value in beside.items() if value is not None}


async def _create(create: Callable[..., Any], fields: Json) -> Json:
    answer: Json = (await create(**_arguments(create, fields))).model_dump()
    return answer


async def stream_events(create: Callable[..., Any], fields: Json) -> list[Json]:
    """Asks for the usage too, which a whole answer always has."""
    options = {"include_usage": True} | (fields.get("stream_options") or {})
    arguments = fields | {"stream": True, "stream_options": options}
    stream = await create(**_arguments(create, arguments))
    return [event.model_dump() async for event in stream]


def _arguments(create: Callable[..., Any], fields: Json) -> Json:
    """As a user of the package writes them: what it doesn't know goes into `extra_body`."""
    known = inspect.signature(create).parameters
    others = {name: value for name, value in fields.items() if name not in known}
    own = {name: value for name, value in fields.items() if name in known}
    return {"model": MODEL} | own | ({"extra_body": others} if others else {})
