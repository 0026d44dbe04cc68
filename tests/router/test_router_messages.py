"""What clients read when something is wrong with their request."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakes_house import MODEL, Texts, house

MESSAGES = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("path", "fields", "message"),
    [
        (
            "completions",
            {"prompt": [1.5]},
            "'prompt' must be a string, a list of strings, token ids, or lists of token ids",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "'messages.0.content' must be a string or a list of text parts",
        ),
        (
            "chat/completions",
            {"messages": MESSAGES, "stop": 5},
            "'stop' must be a string or a list of strings",
        ),
        (
            "chat/completions",
            {"messages": MESSAGES, "max_tokens": 0},
            "max_tokens is 0, but must be at least 1 and at most 2147483647",
        ),
        (
            "chat/completions",
            {"messages": MESSAGES, "temperature": 3},
            "temperature is 3, but must be at least 0 and at most 2",
        ),
        (
            "chat/completions",
            {"messages": MESSAGES, "seed": 2**64},
            "seed is far too large, but must be at least -9223372036854775808 and at most "
            "9223372036854775807",
        ),
        (
            "chat/completions",
            {"messages": MESSAGES, "model": "m" * 100_000},
            f"the model '{'m' * 128}' is not served here",
        ),
    ],
)
def test_a_message_says_what_would_be_right(
    texts: Texts, path: str, fields: dict[str, Any], message: str
) -> None:
    async def run() -> None:
        async with house(texts, ready=False) as h:
            reply = await h.http.post(f"/v1/{path}", json={"model": MODEL, **fields})
            assert reply.status_code in (400, 404)
            assert reply.json()["error"]["message"] == message

    asyncio.run(run())
