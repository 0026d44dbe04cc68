"""Requests given up at random in every stage there is: nothing is left, and nobody else is harmed.

Half of the clients that leave do so when their request has come to a stage that they have chosen,
half when the crowd has been told so much, wherever their request is then. Small pools, links and
steps that are slow now and then, and a router that lets few in see to it that there are all stages.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fakes_byte_model import EOS
from fakes_cases import CaseHouse, case_house, check_same, settings, some_tokens
from fakes_crowd import Crowd, Visit
from fakes_golden import Answer, Ask
from fakes_real_house import Front
from fakes_stages import Stage, Stages

from core.clock import MonotonicClock
from core.request import SamplingParams
from router.life.request_life import RequestLife

BASELINE_S = 1.0
"""Promised: how long after the last client has left the pools may take to be whole."""
ALLOWANCE = 10
"""For a machine that is busy with other things; the figure itself is a property of the test."""
MODEL_LEN = 1024
NUM_INSIDE = 32
NUM_ASKS = 24
MORE = 40
CHOSEN = [stage for stage in Stage if stage is not Stage.OVER]
SHARED = (
    f"model.max_model_len={MODEL_LEN}",
    "scheduler.prefill_chunk_tokens=64",
    "scheduler.admission_growth_tokens=0",
    # Six blocks of 4 kB a message; links and steps that are slow now and then
    f"kv_transfer.max_message_bytes={6 * 4096}",
    "faults.spec=kv_send:delay=0.01:every=4,step:delay=0.01:every=5:worker=decode-0,"
    "step:delay=0.02:every=2:worker=prefill-0",
)


@pytest.fixture(scope="module")
def house(model: Path) -> Iterator[CaseHouse]:
    prefill = settings(model, *SHARED, "cache.num_blocks=200")
    decode = settings(model, *SHARED, "cache.num_blocks=112")
    with case_house(prefill, decode_config=decode) as made:
        yield made


@pytest.fixture(scope="module")
def front(house: CaseHouse) -> Front:
    """A router that lets few wait at the workers: the others wait with it."""
    made = house.add_front(
        *SHARED,
        "scheduler.max_num_waiting=12",
        "router.no_worker_timeout_s=10000",
        "router.request_timeout_s=10000",
    )
    house.run(made.until_connected(2))
    return made


class _Lives:
    """Requests as the router saw them, and where those were that it had given to nobody."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.num_begun = 0
        self.num_queued = 0
        """Given up while no worker had them."""
        init, close = RequestLife.__init__, RequestLife._close

        def begun(life: RequestLife, *args: Any, **fields: Any) -> None:
            self.num_begun += 1
            init(life, *args, **fields)

        def closed(life: RequestLife) -> None:
            ended = all(choice.ended for choice in life.choices)
            self.num_queued += not ended and life._waiting is not None and not life._runs
            close(life)

        patch.setattr(RequestLife, "__init__", begun)
        patch.setattr(RequestLife, "_close", closed)


@dataclass(frozen=True)
class _Leaving(Visit):
    """A client that leaves once its request has come to this stage."""

    stage: Stage = Stage.OVER


class _Leavers(Crowd):
    """They come over HTTP, for a stream or an answer, or over gRPC; some leave on the way in."""

    def __init__(self, front: Front, stages: Stages, rng: random.Random) -> None:
        super().__init__(front, NUM_INSIDE)
        self._stages = stages
        self._rng = rng
        self.left: Counter[str] = Counter()

    @property
    def num_left(self) -> int:
        """Clients that were gone before their answer."""
        return self.left["mid-stream"] + self.left["before its first token"]

    async def _visit(self, visit: Visit) -> Answer | None:
        if not isinstance(visit, _Leaving):
            return await super()._visit(visit)
        async with self._door:
            reached = asyncio.create_task(
                self._stages.reached(visit.cache_salt, visit.stage).wait()
            )
            reading = asyncio.create_task(self._read(visit))
            await asyncio.wait({reached, reading}, return_when=asyncio.FIRST_COMPLETED)
            await _end(reached, reading)
        return None

    async def _until_told(self, patience: int, work: Coroutine[Any, Any, None]) -> None:
        """Without any patience: some turns of the loop, which is before or while it is let in."""
        if patience > 0:
            await super()._until_told(patience, work)
            return
        reading = asyncio.create_task(work)
        for _ in range(self._rng.randrange(40)):
            await asyncio.sleep(0)
        await _end(reading)

    async def _read(self, visit: Visit) -> None:
        how = self._rng.choice([self._stream, self._plain, self._over_grpc])
        told = 0

        def tell() -> None:
            nonlocal told
            told += 1
            self._tell()

        try:
            await how(visit, tell)
        except asyncio.CancelledError:
            self.left["mid-stream" if told else "before its first token"] += 1
            raise
        self.left["never, it was answered first"] += 1

    async def _stream(self, visit: Visit, tell: Callable[[], None]) -> None:
        body = visit.ask.to_json(self._front.model, visit.cache_salt) | {"stream": True}
        async with self._front.http.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200, await response.aread()
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    tell()

    async def _plain(self, visit: Visit, tell: Callable[[], None]) -> None:
        body = visit.ask.to_json(self._front.model, visit.cache_salt)
        response = await self._front.http.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text

    async def _over_grpc(self, visit: Visit, tell: Callable[[], None]) -> None:
        await self._front.complete(visit.ask, visit.cache_salt, tell)


async def _end(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    for task in tasks:
        with contextlib.suppress(asyncio.CancelledError):
            await task


def _asks(rng: random.Random) -> list[Ask]:
    """Prompts of up to two thirds of D's pool; half with choices that end at different times."""
    asks = []
    for number in range(NUM_ASKS):
        several = number % 2 == 1
        sampling = SamplingParams(
            max_tokens=rng.randrange(2, 250),
            temperature=1.0 if several else 0.0,
            seed=number,
            ignore_eos=not several,
            logit_bias=((EOS, 9.0),) if several else (),
        )
        prompt = some_tokens(rng.choice([5, 40, 130, 300, 700]) + rng.randrange(40), seed=number)
        asks.append(Ask(f"ask {number}", tuple(prompt), sampling, n=3 if several else 1))
    return asks


def _visits(asks: list[Ask], num_leaving: int, rng: random.Random, *, first: int) -> list[Visit]:
    """Every fifth stays to the end, so that there is always something to be told."""
    visits: list[Visit] = []
    for number in range(first, first + num_leaving * 5 // 4):
        ask, salt = rng.choice(asks), f"visit {number}"
        match number % 5:
            case 0:
                visits.append(Visit(ask, ""))
            case 1 | 2:
                stage = rng.choice(CHOSEN)
                visits.append(_Leaving(_likely(stage, asks) or ask, salt, stage=stage))
            case _:
                patience = rng.choice([0, rng.randrange(30), rng.randrange(300)])
                visits.append(Visit(ask, rng.choice(["", salt]), patience))
    return visits


def _likely(stage: Stage, asks: list[Ask]) -> Ask | None:
    """The request that is longest where few are for long."""
    match stage:
        case Stage.MID_PREFILL:
            return max(asks, key=lambda ask: len(ask.token_ids))
        case Stage.PREEMPTED:
            return max(asks, key=lambda ask: ask.sampling.max_tokens * ask.sampling.ignore_eos)
        case _:
            return None


async def _give_up(
    house: CaseHouse, front: Front, num_requests: int, patch: pytest.MonkeyPatch
) -> tuple[dict[str, int], float]:
    """How many left at which stage, and how long the pools took to be whole afterwards.

    A few more leave until there was one at every stage.
    """
    rng = random.Random(num_requests)
    asks = _asks(rng)
    alone = {ask.name: await front.complete(ask) for ask in asks}
    stages, lives = Stages(house.p, house.d), _Lives(patch)
    crowd = _Leavers(front, stages, rng)
    num_visits, num_wanted = 0, num_requests
    while num_wanted:
        visits = _visits(asks, num_wanted, rng, first=num_visits)
        answers = await crowd.serve(visits)
        num_visits += len(visits)
        for visit, answer in zip(visits, answers, strict=True):
            if visit.patience is None and not isinstance(visit, _Leaving):
                _check_same(answer, alone[visit.ask.name])
        counts = {stage.value: stages.counts[stage] for stage in Stage}
        counts |= {f"left {how}": number for how, number in crowd.left.items()}
        counts["queued at the router"] = lives.num_queued
        counts["before admission"] = num_visits - lives.num_begun
        is_enough = crowd.num_left >= num_requests and all(counts.values())
        num_wanted = 0 if is_enough else MORE
    clock = MonotonicClock()
    left_at = clock.now()
    async with asyncio.timeout(BASELINE_S * ALLOWANCE):
        await house.until(lambda: house.held("prefill-0") == house.held("decode-0") == 0)
    whole_s = clock.now() - left_at
    await house.check_whole()
    return counts, whole_s


def _check_same(answer: Answer | None, expected: Answer) -> None:
    assert answer is not None
    for got, right in zip(answer.choices, expected.choices, strict=True):
        assert got.token_ids == right.token_ids
        assert got.finish_reason == right.finish_reason


@pytest.mark.parametrize(
    "num_requests",
    [100, pytest.param(10_000, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])],
)
def test_requests_given_up_in_every_stage_leave_nothing_behind(
    house: CaseHouse,
    front: Front,
    num_requests: int,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """All who stayed have the tokens of one alone; pools are whole soon, the books are right."""

    async def test() -> None:
        counts, whole_s = await _give_up(house, front, num_requests, monkeypatch)
        record_property("cancelled by stage", counts)
        record_property("seconds until the pools were whole", whole_s)
        probe = some_tokens(500, seed=99)
        answer = await house.ask(probe, max_tokens=20)
        check_same(answer, await house.ask(probe, max_tokens=20, cache_salt="alone"))

    house.loop.run(test(), timeout_s=3600)
