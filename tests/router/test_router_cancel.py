"""Clients that leave, and choices that end by themselves: nothing runs on for nobody."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest
from fakes_house import MODEL, House, Texts, house
from fakes_language import FakeLanguage
from fakes_pull import DEADLINE_S

from core import metric_names as names

PROMPT = list(range(100, 140))
EOS = 2


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": PROMPT, "max_tokens": 50, "seed": 1} | fields


def in_house(texts: Texts, test: Callable[[House], Awaitable[None]], **settings: Any) -> None:
    """Afterwards no worker runs anything, no lease is open, and the router counts nobody."""

    async def run() -> None:
        async with house(texts, **settings) as h:
            await test(h)
            for worker in (*h.prefill, *h.decode):
                await worker.until(lambda w: not w.num_open)
            assert await h.router.door.drained(DEADLINE_S)
            await h.p.until(lambda _: not h.kv.open)  # its cancel may come after D's

    asyncio.run(run())


async def counter(h: House, name: str) -> float:
    lines = (await h.http.get("/metrics")).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


async def events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line.startswith("data: {"):
            yield json.loads(line.removeprefix("data: "))


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_the_first_token_stops_the_prefill(
    texts: Texts, stream: bool
) -> None:
    async def test(h: House) -> None:
        h.p.gate.clear()
        asking = asyncio.create_task(h.http.post("/v1/completions", json=body(stream=stream)))
        await h.p.until(lambda w: len(w.attempts) == 1)
        await h.d.until(lambda w: len(w.attempts) == 1)
        asking.cancel()
        transfer_id = h.p.attempts[0].transfer_id
        await h.p.until(lambda w: (transfer_id, ()) in w.cancels)
        await h.d.until(lambda w: (transfer_id, ()) in w.cancels)
        assert await h.router.door.drained(DEADLINE_S)
        assert await counter(h, names.CANCELS_TOTAL) == 1

    in_house(texts, test)


def test_a_cancel_that_finds_no_session_is_said_when_there_is_one_again(texts: Texts) -> None:
    """P is done and keeps KV for D's pull; the end of its session alone is no reason to give it up,
    so it has to hear that nobody will pull."""

    async def test(h: House) -> None:
        h.d.gate.clear()
        async with h.http.stream("POST", "/v1/completions", json=body(stream=True)) as response:
            async for _ in events(response):
                break
            epoch, h.p.epoch = h.p.epoch, "keeps the router out"
            h.p.drop_sessions()
            await h.until_connected(1)
        assert await h.router.door.drained(DEADLINE_S)
        h.p.epoch = epoch
        transfer_id = h.p.attempts[0].transfer_id
        await h.p.until(lambda w: (transfer_id, ()) in w.cancels)

    in_house(texts, test)


def test_a_cancel_that_was_lost_with_its_session_is_said_again(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.d.gate.clear()
        async with h.http.stream("POST", "/v1/completions", json=body(stream=True)) as response:
            async for _ in events(response):
                break
            h.p.deaf = True
        await h.p.until(lambda w: w.num_unheard == 1)
        h.p.deaf = False
        h.p.drop_sessions()
        transfer_id = h.p.attempts[0].transfer_id
        await h.p.until(lambda w: (transfer_id, ()) in w.cancels)

    in_house(texts, test)


def test_a_client_that_leaves_mid_stream_stops_the_decode(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.d.gate.clear()
        async with h.http.stream("POST", "/v1/completions", json=body(stream=True)) as response:
            async for _ in events(response):
                break
        transfer_id = h.p.attempts[0].transfer_id
        await h.d.until(lambda w: (transfer_id, ()) in w.cancels)

    in_house(texts, test)


def test_a_client_that_waits_for_a_worker_can_leave(texts: Texts) -> None:
    async def test(h: House) -> None:
        await h.p.die()
        await h.until_connected(1)
        asking = asyncio.create_task(h.http.post("/v1/completions", json=body()))
        async with asyncio.timeout(DEADLINE_S):
            while not h.router.door.admission.num_running:
                await asyncio.sleep(0)
        asking.cancel()

    in_house(texts, test)


def test_one_of_several_prompts_failing_cancels_the_others(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.d.gate.clear()
        answer = await h.http.post(
            "/v1/completions", json=body(prompt=[PROMPT, [10**6]], stream=True)
        )
        assert answer.status_code in (200, 400)
        assert answer.text.count("invalid_request_error") == 1

    in_house(texts, test)


def test_a_first_token_that_ends_the_answer_needs_no_decode_worker(texts: Texts) -> None:
    async def test(h: House) -> None:
        answer = (await h.http.post("/v1/completions", json=body())).json()
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["choices"][0]["text"] == ""
        assert answer["usage"]["completion_tokens"] == 1

    in_house(texts, test, language=FakeLanguage(script={0: EOS}))


def test_one_token_is_served_without_any_decode_worker(texts: Texts) -> None:
    async def test(h: House) -> None:
        answer = (await h.http.post("/v1/completions", json=body(max_tokens=1))).json()
        assert answer["choices"][0]["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == 1
        assert not h.p.cancels, "the worker ended it by itself"

    in_house(texts, test, decode=0)


def test_an_end_token_before_min_tokens_does_not_end_the_answer(texts: Texts) -> None:
    async def test(h: House) -> None:
        request = body(min_tokens=5, max_tokens=8, n=2)
        answer = (await h.http.post("/v1/completions", json=request)).json()
        assert answer["usage"]["completion_tokens"] == 16
        assert {c["finish_reason"] for c in answer["choices"]} == {"length"}

    in_house(texts, test, language=FakeLanguage(script={0: EOS, 3: EOS}))


def test_a_stop_string_cancels_only_its_own_choice(texts: Texts) -> None:
    language = FakeLanguage()
    tokens = language.answer(PROMPT, 1, 0, 50)
    stop = texts.tokenizer.decode(tokens[10:13])
    assert stop not in texts.tokenizer.decode(language.answer(PROMPT, 1, 1, 50))

    async def test(h: House) -> None:
        answer = (await h.http.post("/v1/completions", json=body(n=2, stop=stop))).json()
        first, second = answer["choices"]
        assert (first["finish_reason"], second["finish_reason"]) == ("stop", "length")
        assert first["text"] == texts.tokenizer.decode(tokens).split(stop)[0]
        transfer_id = h.d.attempts[0].transfer_id
        await h.d.until(lambda w: w.cancels == [(transfer_id, (0,))])

    in_house(texts, test)


def test_a_stop_string_in_the_first_token_cancels_both_legs(texts: Texts) -> None:
    first = FakeLanguage().answer(PROMPT, 1, 0, 1)
    stop = texts.tokenizer.decode(first).strip()

    async def test(h: House) -> None:
        h.d.gate.clear()
        answer = (await h.http.post("/v1/completions", json=body(stop=stop))).json()
        assert answer["choices"][0]["finish_reason"] == "stop"
        transfer_id = h.p.attempts[0].transfer_id
        await h.p.until(lambda w: w.cancels == [(transfer_id, ())])
        await h.d.until(lambda w: w.cancels == [(transfer_id, ())])

    in_house(texts, test)


def test_an_answer_that_ends_by_itself_cancels_nothing(texts: Texts) -> None:
    async def test(h: House) -> None:
        assert (await h.http.post("/v1/completions", json=body(n=3))).status_code == 200
        # A second request on the same streams: what the first had sent after it would be here.
        assert (await h.http.post("/v1/completions", json=body())).status_code == 200
        assert not h.p.cancels and not h.d.cancels

    in_house(texts, test)
