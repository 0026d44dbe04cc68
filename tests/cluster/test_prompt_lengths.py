"""Prompts whose lengths lie on and beside every border, over HTTP, on a real pair.

Each is asked twice: cold, and when both workers hold all of its full blocks. Every length has a
cache of its own (`cache_salt`), since the prompts are prefixes of each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fakes_golden import Ask, check_tokens
from fakes_prompts import LONG
from fakes_real_house import (
    BLOCK_SIZE,
    CHUNK_TOKENS,
    MAX_MODEL_LEN,
    PairHouse,
    num_cachable_tokens,
    pair_house,
)
from fakes_solo import Solo

from core.request import SamplingParams
from router.http.logprobs import TokenNames
from text.tokenizer import Tokenizer

SAMPLING = SamplingParams(max_tokens=4, temperature=0.0, logprobs=0, ignore_eos=True)
LONGEST = MAX_MODEL_LEN - SAMPLING.max_tokens
LENGTHS = [
    1,
    BLOCK_SIZE - 1,
    BLOCK_SIZE,
    BLOCK_SIZE + 1,
    CHUNK_TOKENS - 1,
    CHUNK_TOKENS,
    CHUNK_TOKENS + 1,
    2 * CHUNK_TOKENS,
    LONGEST,
]


@pytest.fixture(scope="module")
def pair() -> Iterator[PairHouse]:
    with pair_house() as made:
        yield made


@pytest.fixture(scope="module")
def id_of_name(tokenizer: Tokenizer) -> dict[str, int]:
    """HTTP names tokens; every name belongs to one token only."""
    names = TokenNames(tokenizer, as_ids=False)
    ids = {names.name(i): i for i in range(tokenizer.vocab_size)}
    assert len(ids) == tokenizer.vocab_size
    return ids


def ask_of(length: int, tokenizer: Tokenizer) -> Ask:
    token_ids = tokenizer.encode("".join(LONG) + " ".join(map(str, range(200))))
    assert len(token_ids) >= length
    return Ask(f"{length} tokens", tuple(token_ids[:length]), SAMPLING)


def post(pair: PairHouse, ask: Ask) -> httpx.Response:
    body = ask.to_json(pair.split.model, cache_salt=ask.name)
    return pair.house.loop.run(pair.split.http.post("/v1/completions", json=body))


def answer(pair: PairHouse, ask: Ask) -> dict[str, Any]:
    response = post(pair, ask)
    assert response.status_code == 200, response.text
    body: dict[str, Any] = response.json()
    return body


@pytest.mark.parametrize("length", LENGTHS)
def test_a_prompt_is_answered_right_both_cold_and_cached(
    pair: PairHouse, solo: Solo, tokenizer: Tokenizer, id_of_name: dict[str, int], length: int
) -> None:
    ask = ask_of(length, tokenizer)
    (expected,) = solo.answer(ask).choices
    for num_cached_tokens in (0, num_cachable_tokens(length)):
        body = answer(pair, ask)
        tokens = [id_of_name[name] for name in body["choices"][0]["logprobs"]["tokens"]]
        check_tokens(ask, 0, expected.token_ids, tokens, solo.next_logits)
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"] == {
            "prompt_tokens": length,
            "completion_tokens": SAMPLING.max_tokens,
            "total_tokens": length + SAMPLING.max_tokens,
            "prompt_tokens_details": {"cached_tokens": num_cached_tokens},
        }
        pair.check_whole()


def test_one_token_beyond_the_limit_is_refused_by_name(
    pair: PairHouse, tokenizer: Tokenizer
) -> None:
    response = post(pair, ask_of(LONGEST + 1, tokenizer))
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert str(MAX_MODEL_LEN) in error["message"]
    pair.check_whole()
