"""A house that is busy: who is turned away, with what, and before any work is spent."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from fakes_house import MODEL, House, Texts, house
from fakes_pull import DEADLINE_S

from protos import inference_pb2 as pb
from protos import inference_pb2_grpc
from router.line.ttft_model import MIN_OBSERVATIONS

PROMPT = list(range(100, 140))


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": PROMPT, "max_tokens": 4, "seed": 1} | fields


def in_house(texts: Texts, test: Callable[[House], Awaitable[None]], **router: Any) -> None:
    async def run() -> None:
        async with house(texts, overrides={"router": router}) as h:
            await test(h)

    asyncio.run(run())


async def ask(h: House, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    return await h.http.post("/v1/completions", json=body(**fields), headers=headers)


def teach(h: House, *, tokens_per_second: float) -> None:
    """As if requests had shown how fast the workers are."""
    for i in range(2 * MIN_OBSERVATIONS):
        work = 100.0 * (i + 1)
        h.router.door.hall.line.model.observe(work, work / tokens_per_second)


async def until_waiting(h: House, count: int) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while sum(h.router.door.hall.line.num_waiting.values()) < count:
            await asyncio.sleep(0)


def test_what_would_come_too_late_is_refused_before_work_is_spent(texts: Texts) -> None:
    async def test(h: House) -> None:
        teach(h, tokens_per_second=10.0)
        h.p.gate.clear()
        first = [asyncio.create_task(ask(h, prompt=[i] * 40)) for i in range(3)]
        await h.p.until(lambda w: len(w.attempts) == 2)
        await until_waiting(h, 1)
        # Three prompts of four seconds each are before it, and its own.
        began = time.monotonic()
        refused = await ask(h, {"x-request-deadline-ms": "14500"}, prompt=[9] * 40)
        excess_s = 1.5 + time.monotonic() - began  # at most
        assert refused.status_code == 429
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert 2 <= int(refused.headers["retry-after"]) <= math.ceil(excess_s)
        hopeless = await ask(h, {"x-request-deadline-ms": "500"}, prompt=[9] * 40)
        assert hopeless.status_code == 408, "coming back would not help"
        assert len(h.p.attempts) == 2
        h.p.gate.set()
        assert {r.status_code for r in await asyncio.gather(*first)} == {200}

    in_house(texts, test, dispatch_ahead_tokens=1)


def test_grpc_deadlines_are_looked_at_the_same_way(texts: Texts) -> None:
    async def test(h: House) -> None:
        teach(h, tokens_per_second=20.0)
        h.p.gate.clear()
        first = [asyncio.create_task(ask(h, prompt=[i] * 40)) for i in range(3)]
        await until_waiting(h, 1)
        async with grpc.aio.insecure_channel(f"127.0.0.1:{h.ports.grpc}") as channel:
            call = inference_pb2_grpc.InferenceStub(channel).Complete(
                pb.CompleteRequest(model=MODEL, token_ids=pb.TokenIds(ids=[9] * 40), max_tokens=3),
                timeout=5.0,
            )
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                [event async for event in call]
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        details = dict(refused.value.trailing_metadata())
        assert details["tandem-reason"] == "deadline" and int(details["retry-after"]) >= 2
        h.p.gate.set()
        await asyncio.gather(*first)

    in_house(texts, test, dispatch_ahead_tokens=1)


def test_a_deadline_that_passes_in_the_line_ends_the_request_there(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.gate.clear()
        first = [asyncio.create_task(ask(h)) for _ in range(2)]
        await h.p.until(lambda w: len(w.attempts) == 2)
        late = await ask(h, {"x-request-deadline-ms": "100"})
        assert late.status_code == 408
        assert len(h.p.attempts) == 2
        assert sum(h.router.door.hall.line.num_waiting.values()) == 0
        h.p.gate.set()
        await asyncio.gather(*first)

    in_house(texts, test, dispatch_ahead_tokens=1)


@pytest.mark.parametrize(
    "value", ["0", "-5", "1e3", "NaN", "inf", "", "12.5", "86400001", "9" * 400, "½", "٣"]
)
def test_hostile_deadlines_are_refused(texts: Texts, value: str) -> None:
    async def test(h: House) -> None:
        response = await h.http.post(
            "/v1/completions",
            json=body(),
            headers=[(b"x-request-deadline-ms", value.encode())],
        )
        assert response.status_code == 400
        assert response.json()["error"]["param"] == "x-request-deadline-ms"
        assert not h.p.attempts

    in_house(texts, test)


def test_a_deadline_cannot_be_longer_than_the_operators(texts: Texts) -> None:
    async def test(h: House) -> None:
        assert (await ask(h, {"x-request-deadline-ms": "86400000"})).status_code == 200
        assert (await ask(h, {"x-request-deadline-ms": "5000"})).status_code == 200
        assert h.p.attempts[0].deadline_s <= 7 and h.p.attempts[1].deadline_s <= 5

    in_house(texts, test, request_timeout_s=7.0)


def test_the_queue_is_bounded_in_tokens(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.gate.clear()
        first = [asyncio.create_task(ask(h)) for _ in range(2)]
        await h.p.until(lambda w: len(w.attempts) == 2)
        full = await ask(h)
        assert full.status_code == 429 and "prompt tokens wait" in full.json()["error"]["message"]
        assert (int(full.headers["retry-after"])) >= 1
        short = asyncio.create_task(ask(h, prompt=[1, 2, 3]))
        await h.p.until(lambda w: len(w.attempts) == 3)
        h.p.gate.set()
        assert {r.status_code for r in await asyncio.gather(*first, short)} == {200}
        assert h.router.door.admission.num_waiting_tokens == 0
        assert (await ask(h)).status_code == 200

    in_house(texts, test, max_waiting_prompt_tokens=90)


def test_clients_that_leave_the_line_leave_nothing_behind(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.gate.clear()
        asking = [asyncio.create_task(ask(h)) for _ in range(6)]
        await h.p.until(lambda w: len(w.attempts) == 2)
        await until_waiting(h, 4)
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        assert await h.router.door.drained(DEADLINE_S)
        hall = h.router.door.hall
        assert hall.admission.num_waiting_tokens == sum(hall.line.num_waiting.values()) == 0
        h.p.gate.set()
        assert (await ask(h)).status_code == 200

    in_house(texts, test, dispatch_ahead_tokens=1)


def test_a_closing_router_ends_whoever_waits_in_the_line(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.gate.clear()
        asking = [asyncio.create_task(ask(h)) for _ in range(3)]
        await h.p.until(lambda w: len(w.attempts) == 2)
        await until_waiting(h, 1)
        await h.router.stop(0.0)
        assert {r.status_code for r in await asyncio.gather(*asking)} == {503}

    in_house(texts, test, dispatch_ahead_tokens=1)


def test_a_worker_that_is_lost_frees_the_line(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.gate.clear()
        asking = [asyncio.create_task(ask(h)) for _ in range(4)]
        await h.p.until(lambda w: len(w.attempts) == 2)
        await until_waiting(h, 2)
        await h.p.die()
        await h.until(lambda: len(h.router.fleet.views()) == 1)
        h.p.gate.set()
        await h.restart(h.p)
        assert {r.status_code for r in await asyncio.gather(*asking)} == {200}

    in_house(texts, test, dispatch_ahead_tokens=1)
