"""Every worker and the router are replaced, one after the other, while clients go on asking."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from fakes_cases import CaseHouse, Json, case_house, check_same, post, settings, some_tokens
from fakes_real_house import Front

from core.request import Phase

NUM_CLIENTS = 6
PROMPTS = [some_tokens(20 + 90 * number, seed=number) for number in range(NUM_CLIENTS)]
PATIENCE_S = 120.0


@pytest.fixture
def house(model: Path) -> Iterator[CaseHouse]:
    config = settings(model, "scheduler.prefill_chunk_tokens=64")
    with case_house(config, prefill=2, decode=2) as made:
        yield made


class _Load:
    """Clients that ask one thing after another, of whichever router they are told to."""

    def __init__(self, front: Front) -> None:
        self.front = front
        self.num_answered = 0
        self.answers: list[tuple[int, Json]] = []
        self._over = False
        self._answered = asyncio.Condition()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """At the end all of them have their last answer."""
        clients = [asyncio.create_task(self._client(number)) for number in range(NUM_CLIENTS)]
        try:
            yield
        finally:
            self._over = True
            await asyncio.gather(*clients)

    async def until_answered(self, count: int) -> None:
        """So many more answers have come."""
        wanted = self.num_answered + count
        async with self._answered:
            await self._answered.wait_for(lambda: self.num_answered >= wanted)

    async def _client(self, number: int) -> None:
        while not self._over:
            front = self.front
            response = await post(front, PROMPTS[number], max_tokens=30, ignore_eos=True)
            if response.status_code == 503 and front is not self.front:
                continue  # it came to a door that was closing: it is told so, and asks the other
            assert response.status_code == 200, response.text
            self.answers.append((number, response.json()))
            async with self._answered:
                self.num_answered += 1
                self._answered.notify_all()


def test_a_rolling_restart_under_load_loses_nothing(house: CaseHouse) -> None:
    """Case 28. Each worker has left the cluster before it drains; what had been sent to it until
    then is refused or finished, and every answer is right."""
    first, second = house.router, house.add_front()

    async def test() -> None:
        load = _Load(first)
        async with load.running():
            await load.until_answered(NUM_CLIENTS)
            for old in list(house.workers):
                await house.add_worker(house.config, old.role, f"{old.role.value}-of-{id(old)}")
                await first.until_connected(5)
                assert await old.drain(PATIENCE_S) == 0, "work was left when it had drained"
                assert old.member.worker_id not in {
                    m.worker_id for m in await house.store.members()
                }
                await load.until_answered(NUM_CLIENTS)
                await house.stop(old)
                await load.until_answered(NUM_CLIENTS)
            load.front = second
            await first.server.stop(PATIENCE_S)
            await load.until_answered(2 * NUM_CLIENTS)
        house.front_ = second
        assert {worker.role for worker in house.workers} == set(Phase)
        alone = [
            await house.ask(prompt, max_tokens=30, ignore_eos=True, cache_salt="alone")
            for prompt in PROMPTS
        ]
        for number, answer in load.answers:
            check_same(answer, alone[number])
        await house.check_whole()

    house.run(test())
