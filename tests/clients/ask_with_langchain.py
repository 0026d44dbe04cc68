"""Asks a server through langchain-openai; what it got is one JSON object on standard output."""

from __future__ import annotations

import json
import sys
from typing import Any, Literal

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool  # type: ignore[untyped-decorator]
def weather(city: Literal["Paris", "Rome"]) -> str:
    """The weather of a city."""
    return f"Sunny in {city}."


def main() -> None:
    url, model, question = sys.argv[1:]

    def chat(**settings: Any) -> Any:
        base = {"max_tokens": 24, "temperature": 0, "max_retries": 0, "stream_usage": True}
        return ChatOpenAI(model=model, base_url=f"{url}/v1", api_key="none", **(base | settings))

    talk, through_responses = chat(), chat(use_responses_api=True)
    named = chat(max_tokens=400).bind_tools([weather], tool_choice="weather", strict=True)
    required = chat(max_tokens=400).bind_tools(
        [weather], tool_choice="required", strict=True, parallel_tool_calls=False
    )
    told = {
        "whole": told_of(talk.invoke(question)),
        "streamed": told_of(streamed(talk, question)),
        "responses": told_of(through_responses.invoke(question)),
        "responses streamed": told_of(streamed(through_responses, question)),
        "named": told_of(named.invoke(question)),
        "named streamed": told_of(streamed(named, question)),
        "required": told_of(required.invoke(question)),
    }
    sys.stdout.write(json.dumps(told))


def streamed(model: Any, question: str) -> Any:
    """A stream, taken together as the package does it."""
    first, *rest = model.stream(question)
    return sum(rest, start=first)


def told_of(message: Any) -> dict[str, Any]:
    """What two answers to the same question have in common."""
    usage = message.usage_metadata
    return {
        "text": message.text if isinstance(message.text, str) else message.text(),
        "reason": message.response_metadata.get("finish_reason"),
        "calls": [[call["name"], call["args"]] for call in message.tool_calls],
        "tokens": [usage["input_tokens"], usage["output_tokens"]],
    }


if __name__ == "__main__":
    main()
