"""A schema's stream survives SIGKILL of its decode worker, which is a process of its own.

At every fourth token, since each kill waits for a new process; test_structure_after_death.py has
every token, with workers that vanish in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path

import jsonschema
import pytest
from fakes_case_process import case_process, shared_state
from fakes_cases import CaseHouse, case_house, settings, some_tokens
from fakes_process import Child

from core.request import Phase

pytestmark = pytest.mark.slow

SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "string", "pattern": "^[a-z]{22}$"}},
    "required": ["id"],
    "additionalProperties": False,
}
LENGTH_AT_LEAST = 30
STRIDE = 4
SLOW = ("faults.spec=step:delay=0.02", "router.no_worker_timeout_s=120")
"""A delay in each step keeps the answer from ending before the kill."""


@pytest.fixture
def state(redis_url: str) -> tuple[str, ...]:
    return shared_state(redis_url)


@pytest.fixture
def house(model: Path, state: tuple[str, ...]) -> Iterator[CaseHouse]:
    with case_house(settings(model, *state, *SLOW, "router.max_attempts=4"), decode=0) as made:
        yield made


async def pieces(house: CaseHouse, salt: str) -> AsyncGenerator[str, None]:
    """The text of a streamed answer as it comes."""
    body = {
        "model": house.router.model,
        "prompt": some_tokens(20, seed=4),
        "max_tokens": 100,
        "temperature": 1.0,
        "seed": 9,
        "structured_outputs": {"json": SCHEMA},
        "cache_salt": salt,
        "stream": True,
    }
    async with house.router.http.stream("POST", "/v1/completions", json=body) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                for choice in json.loads(line.removeprefix("data: "))["choices"]:
                    yield choice["text"]


async def killed_after(
    house: CaseHouse, num_pieces: int, salt: str, replace: Callable[[], None]
) -> str:
    """The whole text; the decode worker is replaced when its client has so many pieces."""
    text, seen = "", 0
    async with contextlib.aclosing(pieces(house, salt)) as stream:
        async for piece in stream:
            text, seen = text + piece, seen + 1
            if seen == num_pieces:
                await asyncio.to_thread(replace)
    return text


@pytest.mark.timeout(900)
def test_a_stream_survives_kills_at_any_token(
    house: CaseHouse, model: Path, state: tuple[str, ...]
) -> None:
    """Nobody but the victim can be serving: the next worker is started when it is dead."""
    with contextlib.ExitStack() as stack:
        alive: list[Child] = []

        def start() -> None:
            worker_id = f"decode-{uuid.uuid4().hex}"
            made = case_process(Phase.DECODE, worker_id, model, (*state, *SLOW))
            alive.append(stack.enter_context(made))

        def replace() -> None:
            victim = alive.pop()
            victim.process.kill()
            victim.end()
            start()

        start()
        expected = house.run(killed_after(house, 0, "alone", replace))
        jsonschema.validate(json.loads(expected), SCHEMA)
        assert len(expected) >= LENGTH_AT_LEAST, "tokens of this model are bytes"
        for position in range(1, LENGTH_AT_LEAST, STRIDE):
            text = house.run(killed_after(house, position, f"killed {position}", replace))
            assert text == expected, position
