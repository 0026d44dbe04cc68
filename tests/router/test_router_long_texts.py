"""Texts that can't fit the model are refused for what they are, not after they were tokenised."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fakes_house import MODEL, Texts, house
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ContextLengthError
from router.dialect import Dialect
from router.request_spec import MAX_MESSAGES, ChatPrompt
from router.structure.grammar_check import GrammarCheck
from router.texts import Texts as RouterTexts
from text.structure.compiler import GrammarCompiler
from text.structure.vocabulary import grammar_vocabulary

MAX_MODEL_LEN = 3


def router_texts(texts: Texts) -> RouterTexts:
    compiler = GrammarCompiler(lambda: grammar_vocabulary(texts.tokenizer, texts.card.vocab_size))
    return RouterTexts(
        texts.tokenizer,
        texts.template,
        num_threads=1,
        max_model_len=MAX_MODEL_LEN,
        dialect=Dialect(),
        grammars=GrammarCheck(compiler),
    )


@given(st.text(st.characters(codec="utf-8"), min_size=1) | st.text("a #=\n", min_size=200))
def test_no_text_has_fewer_tokens_than_the_limit_assumes(texts: Texts, text: str) -> None:
    """Bytes without a token, such as some control characters, are left out of any encoding."""
    token_ids = texts.tokenizer.encode(text)
    kept = texts.tokenizer.decode(token_ids, skip_special_tokens=False)
    assert len(kept) <= len(token_ids) * texts.tokenizer.max_token_characters


def test_a_text_beyond_any_encoding_is_refused(texts: Texts) -> None:
    longest = MAX_MODEL_LEN * texts.tokenizer.max_token_characters
    encode = router_texts(texts).encode
    assert asyncio.run(encode("a" * longest))
    with pytest.raises(ContextLengthError) as caught:
        asyncio.run(encode("a" * (longest + 1)))
    assert caught.value.param == "prompt"
    with pytest.raises(ContextLengthError) as caught:
        asyncio.run(encode(ChatPrompt(messages=({"role": "user", "content": "a" * longest},))))
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        (
            {"messages": [{"role": "user", "content": " " * 2_000_000}]},
            "messages",
            "context_length_exceeded",
        ),
        (
            {"messages": [{"role": "user", "content": ""}] * (MAX_MESSAGES + 1)},
            "messages",
            "invalid_type",
        ),
    ],
)
def test_clients_hear_a_400(texts: Texts, fields: dict[str, Any], param: str, code: str) -> None:
    async def run() -> None:
        async with house(texts, ready=False) as h:
            reply = await h.http.post("/v1/chat/completions", json={"model": MODEL, **fields})
            assert reply.status_code == 400
            error = reply.json()["error"]
            assert (error["param"], error["code"]) == (param, code)

    asyncio.run(run())
