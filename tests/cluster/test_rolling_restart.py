"""Every worker and both routers are replaced one after the other under load: no answer is lost.

Clients ask the routers in turn. One that is told that a router shuts down, or whose connection ends
before a word of an answer, asks the other: that is all it takes. What a router has let in, it ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from fakes_cases import CaseHouse, Json, case_house, settings, some_tokens
from fakes_loop_thread import DEADLINE_S
from fakes_observed_worker import ObservedWorker
from fakes_real_house import Front

from bench.tandem_server import free_port
from core import metric_names as names

NUM_CLIENTS = 4
BODIES: tuple[Json, ...] = tuple(
    {
        "prompt": some_tokens(length, seed=length),
        "max_tokens": 60,
        "n": n,
        "temperature": temperature,
        "seed": 7,
        "logprobs": 2,
        "ignore_eos": True,
    }
    for length, n, temperature in [(5, 1, 0.0), (40, 3, 0.9), (90, 2, 0.0), (130, 1, 1.1)]
)


@dataclass
class Crowd:
    """Clients without pause, until they are told to stop."""

    model: str
    ports: list[int]
    answers: list[tuple[int, Json]] = field(default_factory=list)
    """Each body's index and answer."""
    num_turned_away: int = 0
    _happened: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _stopping: bool = False

    async def begin(self) -> None:
        self._tasks = [asyncio.create_task(self._client(i)) for i in range(NUM_CLIENTS)]

    async def end(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def more(self, count: int) -> None:
        """So many more answers, or the failure of a client."""
        wanted = len(self.answers) + count
        await self._until(lambda: len(self.answers) >= wanted)

    async def more_turned_away(self) -> None:
        """One more at least."""
        before = self.num_turned_away
        await self._until(lambda: self.num_turned_away > before)

    async def _until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while not condition():
                self._happened.clear()
                waiting = asyncio.create_task(self._happened.wait())
                done, _ = await asyncio.wait(
                    {waiting, *self._tasks}, return_when=asyncio.FIRST_COMPLETED
                )
                for ended in done:
                    ended.result()

    async def _client(self, number: int) -> None:
        async with httpx.AsyncClient(timeout=DEADLINE_S) as http:
            turn = number
            while not self._stopping:
                index = turn % len(BODIES)
                body = {"cache_salt": f"{number}/{turn}", **BODIES[index]}
                self.answers.append((index, await self._answer(http, turn, body)))
                self._happened.set()
                turn += 1

    def _turned_away(self) -> None:
        self.num_turned_away += 1
        self._happened.set()

    async def _answer(self, http: httpx.AsyncClient, turn: int, body: Json) -> Json:
        for attempt in range(2):
            port = self.ports[(turn + attempt) % 2]
            try:
                response = await http.post(
                    f"http://127.0.0.1:{port}/v1/completions", json={"model": self.model, **body}
                )
            except httpx.TransportError:
                self._turned_away()
                continue
            if response.status_code == 503 and "shutting down" in response.text:
                self._turned_away()
                continue
            assert response.status_code == 200, response.text
            answer: Json = response.json()
            return answer
        raise AssertionError("both routers turned a client away")


@pytest.fixture
def house(model: Path) -> Iterator[CaseHouse]:
    with case_house(settings(model), prefill=2, decode=2) as made:
        yield made


def test_a_rolling_restart_of_workers_and_routers_loses_no_answer(house: CaseHouse) -> None:
    def router(port: int) -> Front:
        front = house.add_front(f"router.http_port={port}")
        house.run(front.until_connected(4))
        return front

    def outcomes(front: Front) -> set[str]:
        metrics = front.server.door.metrics.registry.collect()
        (requests,) = (m for m in metrics if f"{m.name}_total" == names.REQUESTS_TOTAL)
        return {x.labels["outcome"] for x in requests.samples if x.name == names.REQUESTS_TOTAL}

    def replace(worker: ObservedWorker) -> None:
        name = worker.member.worker_id
        assert house.run(worker.drain(DEADLINE_S)) == 0
        house.run(house.stop(worker))
        house.observe(house.config, worker.role, name)
        for front in (house.router, *fronts):
            house.run(front.until_connected(4))
        house.run(crowd.more(NUM_CLIENTS))

    ports = [free_port(), free_port()]
    fronts = [router(port) for port in ports]
    crowd = Crowd(house.router.model, ports)
    expected = [house.run(house.ask(**body)) for body in BODIES]
    house.run(crowd.begin())
    house.run(crowd.more(NUM_CLIENTS))
    for worker in list(house.workers):
        replace(worker)
    for number, port in enumerate(ports):
        house.run(fronts[number].server.stop(DEADLINE_S))
        house.run(crowd.more_turned_away())  # before there is a router again
        assert outcomes(fronts[number]) <= {"finished", "service_unavailable"}
        fronts[number] = router(port)
        house.run(crowd.more(NUM_CLIENTS))
    house.run(crowd.end())
    for index, answer in crowd.answers:
        assert answer["choices"] == expected[index]["choices"], "no token, no log-probability"
        assert answer["usage"] == expected[index]["usage"]
    house.run(house.check_whole())
