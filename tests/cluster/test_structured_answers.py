"""Answers of the real default model that follow schemas, on P+D, at temperature 0 and 1."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from fakes_real_house import Front, RealHouse, real_house, settings
from fakes_schemas import NamedSchema, schemas

from core.request import Phase
from state.memory import MemoryStore

AT_ONCE = 16
MAX_TOKENS = 300
ALL = schemas()
QUICK = ALL[::12]


@pytest.fixture(scope="module")
def house() -> Iterator[tuple[RealHouse, Front]]:
    with real_house() as made:
        store = MemoryStore()
        for role in Phase:
            made.worker(settings(), role, store)
        front = made.front(settings(), store)
        made.loop.run(front.until_connected(2))
        yield made, front


async def ask(front: Front, fields: dict[str, Any]) -> list[dict[str, Any]]:
    """The choices of a chat about something."""
    body: dict[str, Any] = {
        "model": front.model,
        "messages": [{"role": "user", "content": "Invent something and answer in JSON."}],
        "max_tokens": MAX_TOKENS,
    }
    response = await front.http.post("/v1/chat/completions", json=body | fields)
    assert response.status_code == 200, response.text
    choices: list[dict[str, Any]] = response.json()["choices"]
    return choices


def num_finished(
    house: tuple[RealHouse, Front], asked: Sequence[NamedSchema], **fields: Any
) -> int:
    """How many answers came to their end; each of those must be valid."""
    real, front = house
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(index: int, named: NamedSchema) -> int:
        async with limit:
            wanted = {"response_format": named.response_format(), "seed": index}
            choices = await ask(front, wanted | fields)
        finished = [c["message"]["content"] for c in choices if c["finish_reason"] == "stop"]
        for text in finished:
            named.check(text)
        return len(finished)

    async def all_of_them() -> int:
        return sum(await asyncio.gather(*(one(i, named) for i, named in enumerate(asked))))

    return real.loop.run(all_of_them())


@pytest.mark.parametrize("temperature", [0, 1])
def test_every_finished_answer_follows_its_schema(
    house: tuple[RealHouse, Front], temperature: int
) -> None:
    count = num_finished(house, QUICK, temperature=temperature)
    assert count >= len(QUICK) - 2, "nearly all end before the limit"


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0, 1])
def test_every_finished_answer_follows_its_schema_for_all_schemas(
    house: tuple[RealHouse, Front], temperature: int
) -> None:
    assert len(ALL) == 100
    assert num_finished(house, ALL, temperature=temperature) >= 90


def test_several_choices_and_all_else_together_still_follow(
    house: tuple[RealHouse, Front],
) -> None:
    """With log-probabilities, penalties, filters and `min_tokens`, three choices each."""
    fields = {
        "n": 3,
        "temperature": 1,
        "logprobs": True,
        "top_logprobs": 2,
        "presence_penalty": 0.5,
        "repetition_penalty": 1.1,
        "top_p": 0.9,
        "min_tokens": 5,
    }
    assert num_finished(house, QUICK[:5], **fields) >= 12


def test_a_stop_string_ends_a_structured_answer_before_its_end(
    house: tuple[RealHouse, Front],
) -> None:
    real, front = house
    named = next(s for s in ALL if s.name == "person")
    fields = {"response_format": named.response_format(), "temperature": 0, "stop": '"age"'}
    (choice,) = real.loop.run(ask(front, fields))
    text = choice["message"]["content"]
    assert choice["finish_reason"] == "stop" and '"name"' in text and "age" not in text


def test_the_limit_ends_a_structured_answer_as_length(house: tuple[RealHouse, Front]) -> None:
    real, front = house
    named = next(s for s in ALL if s.name == "character sheet")
    fields = {"response_format": named.response_format(), "temperature": 0, "max_tokens": 5}
    (choice,) = real.loop.run(ask(front, fields))
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}])
def test_a_call_that_must_be_made_is_made_and_valid(
    house: tuple[RealHouse, Front], choice: object
) -> None:
    real, front = house
    named = next(s for s in ALL if s.name == "person")
    tool = {"type": "function", "function": {"name": "f", "parameters": named.schema}}
    for temperature in (0, 1):
        fields = {"tools": [tool], "tool_choice": choice, "temperature": temperature, "seed": 3}
        fields["parallel_tool_calls"] = False
        (answer,) = real.loop.run(ask(front, fields))
        assert answer["finish_reason"] == "tool_calls", answer
        (call,) = answer["message"]["tool_calls"]
        assert call["function"]["name"] == "f"
        named.check(call["function"]["arguments"])
