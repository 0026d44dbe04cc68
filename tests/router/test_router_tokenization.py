"""/tokenize and /detokenize are the model's tokenizer, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fakes_house import MODEL, House, Texts, house

TEXT = "Hello, wörld! 你好"
CHAT = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Yes"}]


def in_house(texts: Texts, test: Callable[[House], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with house(texts, ready=False, **settings) as h:
            await test(h)

    asyncio.run(run())


async def tokens_of(h: House, path: str = "/tokenize", **fields: Any) -> list[int]:
    response = await h.http.post(path, json=fields)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert answer["count"] == len(answer["tokens"])
    assert answer["max_model_len"] == h.router.door.settings.max_model_len
    tokens: list[int] = answer["tokens"]
    return tokens


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_a_text_goes_there_and_back(texts: Texts, prefix: str) -> None:
    async def test(h: House) -> None:
        tokens = await tokens_of(h, f"{prefix}/tokenize", model=MODEL, prompt=TEXT)
        assert tokens == texts.tokenizer.encode(TEXT)
        response = await h.http.post(f"{prefix}/detokenize", json={"tokens": tokens})
        assert response.json() == {"prompt": TEXT}

    in_house(texts, test)


def test_special_tokens_are_shown_by_detokenize(texts: Texts) -> None:
    async def test(h: House) -> None:
        tokens = await tokens_of(h, prompt="<|im_start|>Hi")
        response = await h.http.post("/detokenize", json={"tokens": tokens})
        assert response.json() == {"prompt": "<|im_start|>Hi"}

    in_house(texts, test)


def test_a_chat_is_rendered_as_it_would_be_to_be_answered(texts: Texts) -> None:
    async def test(h: House) -> None:
        tokens = await tokens_of(h, messages=CHAT)
        request = {"model": MODEL, "messages": CHAT, "max_tokens": 1}
        answer = (await h.http.post("/v1/chat/completions", json=request)).json()
        assert answer["usage"]["prompt_tokens"] == len(tokens)
        variants: list[dict[str, Any]] = [
            {"add_generation_prompt": False},
            {"add_generation_prompt": False, "continue_final_message": True},
        ]
        for options in variants:
            rendered = texts.template.render(CHAT, **options)
            expected = texts.tokenizer.encode(rendered, add_special_tokens=False)
            assert await tokens_of(h, messages=CHAT, **options) == expected

    in_house(texts, test)


def test_token_strings_are_the_vocabulary_s(texts: Texts) -> None:
    async def test(h: House) -> None:
        request = {"prompt": "Hello you", "return_token_strs": True}
        answer = (await h.http.post("/tokenize", json=request)).json()
        assert answer["token_strs"] == ["Hello", "Ġyou"]
        answer = (await h.http.post("/tokenize", json={"prompt": "Hello you"})).json()
        assert answer["token_strs"] is None

    in_house(texts, test)


FAULTS: list[tuple[str, dict[str, Any], int, str]] = [
    ("/tokenize", {}, 400, "prompt"),
    ("/tokenize", {"prompt": "x", "messages": CHAT}, 400, "messages"),
    ("/tokenize", {"prompt": "x", "model": "other"}, 404, "model"),
    ("/tokenize", {"prompt": 3}, 400, "prompt"),
    ("/tokenize", {"messages": []}, 400, "messages"),
    ("/tokenize", {"prompt": "x", "tools": []}, 400, "tools"),
    (
        "/tokenize",
        {"messages": CHAT, "continue_final_message": True, "add_generation_prompt": True},
        400,
        "continue_final_message",
    ),
    (
        "/tokenize",
        {"messages": CHAT, "chat_template_kwargs": {"messages": []}},
        400,
        "chat_template_kwargs",
    ),
    ("/tokenize", {"prompt": "x" * 3_000_000}, 400, "prompt"),
    ("/detokenize", {}, 400, "tokens"),
    ("/detokenize", {"tokens": [-1]}, 400, "tokens"),
    ("/detokenize", {"tokens": [10**9]}, 400, "tokens"),
    ("/detokenize", {"tokens": [1] * 100_000}, 400, "tokens"),
    ("/detokenize", {"tokens": [1], "model": "other"}, 404, "model"),
]


def test_a_fault_names_the_field(texts: Texts) -> None:
    async def test(h: House) -> None:
        for path, fields, status, param in FAULTS:
            response = await h.http.post(path, json=fields)
            error = response.json()["error"]
            assert (response.status_code, error["param"]) == (status, param), (fields, error)

    in_house(texts, test)
