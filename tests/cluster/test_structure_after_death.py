"""A streamed answer that follows a schema survives the death of its decode worker at every token.

One prefill worker, one decode worker at a time. The answer is of some 30 tokens of the byte model,
whose letters are random: without the grammar it would be no JSON, and with a grammar that began
anew, or lost a token, it would not fit together.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import jsonschema
import pytest
from fakes_cases import CaseHouse, case_house, settings, some_tokens
from fakes_moving_house import new_decode_worker, step_until
from fakes_observed_worker import ObservedWorker
from fakes_protocols import PROTOCOLS, Client

from engine.role import Submit

SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[a-z]{6}$"},
        "n": {"type": "string", "pattern": "^[0-9]{5}$"},
    },
    "required": ["id", "n"],
    "additionalProperties": False,
}
PROMPT = some_tokens(40, seed=2)
HTTP, GRPC = PROTOCOLS["http"], PROTOCOLS["grpc"]
Answer: TypeAlias = list[tuple[Any, ...]]
"""Of each choice: its text, its tokens, and its one finish reason."""


@pytest.fixture(scope="module")
def house(model: Path) -> Iterator[CaseHouse]:
    with case_house(settings(model, "router.max_attempts=5")) as made:
        yield made


async def streamed(house: CaseHouse, salt: str, client: Client = HTTP, **fields: Any) -> Answer:
    """Text, names of tokens and end of each choice, as its stream adds up."""
    asked: dict[str, Any] = {
        "max_tokens": 200,
        "temperature": 0.9,
        "seed": 11,
        "structured_outputs": {"json": SCHEMA},
        "cache_salt": f"{type(client).__name__} {salt}",
    }
    outcome = await client.ask(house.router, PROMPT, **(asked | fields))
    assert outcome.status == 200, outcome
    return [(choice.text, choice.tokens, *choice.reasons) for choice in outcome.choices]


def check(answer: tuple[Any, ...]) -> None:
    text, _, *ends = answer
    assert ends == ["stop"]
    jsonschema.validate(json.loads(text), SCHEMA)


async def kill(house: CaseHouse, victim: ObservedWorker) -> None:
    """The worker is gone in the middle of a step: what that step computes reaches nobody."""
    await new_decode_worker(house)
    stopping = asyncio.create_task(house.stop(victim))
    epoch = victim.member.epoch
    await house.until(lambda: all(v.epoch != epoch for v in house.router.server.fleet.views()))
    victim.steps.release()
    await stopping


async def killed_at(
    house: CaseHouse, position: int, client: Client = HTTP, **fields: Any
) -> Answer:
    """The answer whose decode worker dies when its client has so many tokens of each choice."""
    victim = house.d
    victim.steps.num_tokens.clear()
    victim.steps.hold(after=position - 1)
    asking = asyncio.create_task(streamed(house, f"killed at {position}", client, **fields))
    await victim.steps.until_held()
    await kill(house, victim)
    return await asking


def test_an_undisturbed_answer_follows_the_schema(house: CaseHouse) -> None:
    async def test() -> None:
        (answer,) = await streamed(house, "alone")
        check(answer)
        assert len(answer[1]) >= 30

    house.run(test())


@pytest.mark.parametrize(("client", "stride"), [(HTTP, 1), (GRPC, 4)], ids=["http", "grpc"])
def test_a_stream_survives_a_death_at_every_token(
    house: CaseHouse, client: Client, stride: int
) -> None:
    """Case 17. Over gRPC at every fourth: what differs is only how the answer is told."""

    async def test() -> None:
        expected = await streamed(house, "alone once more", client)
        check(expected[0])
        for position in range(1, len(expected[0][1]), stride):
            assert await killed_at(house, position, client) == expected, position

    house.run(test())


@pytest.mark.parametrize("client", [HTTP, GRPC], ids=["http", "grpc"])
def test_several_choices_survive_too(house: CaseHouse, client: Client) -> None:
    """Case 17."""

    async def test() -> None:
        expected = await streamed(house, "three alone", client, n=3)
        assert len({text for text, *_ in expected}) == 3
        for answer in expected:
            check(answer)
        assert await killed_at(house, 12, client, n=3) == expected

    house.run(test())


def test_both_protocols_tell_the_same_structured_answer(house: CaseHouse) -> None:
    async def test() -> None:
        over_http = await streamed(house, "the same", HTTP, n=2)
        assert await streamed(house, "the same", GRPC, n=2) == over_http

    house.run(test())


def test_a_drained_worker_s_answer_goes_on_elsewhere_with_its_grammar(house: CaseHouse) -> None:
    async def test() -> None:
        expected = await streamed(house, "alone before a drain")
        victim = house.d
        victim.steps.hold()
        asking = asyncio.create_task(streamed(house, "drained"))
        await step_until(victim, lambda load: load.num_running == 1)
        await new_decode_worker(house)
        draining = asyncio.create_task(victim.drain(30.0))
        await house.until(lambda: len(house.router.server.fleet.views()) == 2)
        victim.steps.release()
        assert await asking == expected
        assert await draining == 0
        await house.stop(victim)

    house.run(test())


def test_preempted_answers_follow_their_schema_to_the_bit(model: Path) -> None:
    """So few blocks that of eight answers at once some give way and are computed anew."""
    few = ("cache.num_blocks=24", "model.max_model_len=256", "scheduler.admission_growth_tokens=0")

    with case_house(settings(model, *few)) as small:

        async def test() -> None:
            expected = [await streamed(small, f"alone {i}", seed=i) for i in range(8)]
            small.d.posted.clear()
            small.d.steps.hold()
            asking = asyncio.gather(*(streamed(small, f"together {i}", seed=i) for i in range(8)))
            await small.d.posted.until(Submit, 8)
            small.d.steps.release()
            together = await asking
            assert together == expected
            assert small.d.parts.step_loop.load().num_preemptions > 0
            for (answer,) in together:
                check(answer)

        small.run(test())
