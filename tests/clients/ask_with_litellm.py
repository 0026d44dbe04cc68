"""Asks a server through litellm; what it got is one JSON object on standard output."""

from __future__ import annotations

import json
import sys
from typing import Any

import litellm

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
NAMED = {"type": "function", "function": {"name": "weather"}}


def main() -> None:
    url, model, question = sys.argv[1:]
    ask: dict[str, Any] = {
        "model": f"openai/{model}",
        "api_base": f"{url}/v1",
        "api_key": "none",
        "messages": [{"role": "user", "content": question}],
        "temperature": 0,
        "max_tokens": 24,
    }
    call = ask | {"tools": [WEATHER], "max_tokens": 400}
    told = {
        "whole": told_of(litellm.completion(**ask)),
        "streamed": told_of(streamed(ask)),
        "named": told_of(litellm.completion(**call, tool_choice=NAMED)),
        "named streamed": told_of(streamed(call | {"tool_choice": NAMED})),
        "required": told_of(
            litellm.completion(**call, tool_choice="required", parallel_tool_calls=False)
        ),
    }
    sys.stdout.write(json.dumps(told))


def streamed(ask: dict[str, Any]) -> Any:
    """A stream, taken together as the package does it."""
    chunks = list(litellm.completion(**ask, stream=True, stream_options={"include_usage": True}))
    return litellm.stream_chunk_builder(chunks, messages=ask["messages"])


def told_of(answer: Any) -> dict[str, Any]:
    """What two answers to the same question have in common."""
    (choice,) = answer.choices
    calls = choice.message.tool_calls or ()
    return {
        "text": choice.message.content or "",
        "reason": choice.finish_reason,
        "calls": [[call.function.name, json.loads(call.function.arguments)] for call in calls],
        "tokens": [answer.usage.prompt_tokens, answer.usage.completion_tokens],
    }


if __name__ == "__main__":
    main()
