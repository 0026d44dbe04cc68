"""A status of 200 promises a first token; and answers go to who asked, whatever id they sent."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fakes_cases import (
    CaseHouse,
    Json,
    case_house,
    events_of,
    post,
    settings,
    some_tokens,
    together,
)

from engine.role import Submit
from router.identifiers import MAX_CLIENT_ID_LENGTH

STREAM = pytest.mark.parametrize("stream", [False, True])
CHUNK = 64


@pytest.fixture(scope="module")
def house(model: Path) -> Iterator[CaseHouse]:
    with case_house(settings(model, f"scheduler.prefill_chunk_tokens={CHUNK}")) as made:
        yield made


def check_failed(response: httpx.Response, status: int, code: str) -> None:
    """A whole error, with nothing of a stream in it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    assert response.json()["error"]["code"] == code


@STREAM
@pytest.mark.parametrize(("prefill", "decode"), [(0, 0), (0, 1), (1, 0)])
def test_without_a_pair_the_answer_is_503(
    model: Path, prefill: int, decode: int, stream: bool
) -> None:
    """Case 25. Nobody could compute the first token, or nobody the others."""
    config = settings(model, "router.no_worker_timeout_s=0.1")
    with case_house(config, prefill=prefill, decode=decode) as house:
        request = post(house.router, some_tokens(20), max_tokens=5, stream=stream)
        response = house.run(request)
        check_failed(response, 503, "no_worker")
        assert int(response.headers["retry-after"]) >= 1
        ready = house.run(house.router.http.get("/ready"))
        check_failed(ready, 503, "no_worker")


@STREAM
def test_a_prefill_that_fails_is_an_error_and_not_an_empty_stream(
    house: CaseHouse, stream: bool
) -> None:
    """Case 25. The model's logits for the first token are no numbers."""

    async def test() -> None:
        house.p.steps.spoil(1)
        response = await post(house.router, some_tokens(20), max_tokens=5, stream=stream)
        check_failed(response, 500, "non_finite_logits")
        await house.check_whole()
        assert (await house.ask(some_tokens(20), max_tokens=5))["usage"]["completion_tokens"] == 5

    house.run(test())


@STREAM
def test_a_deadline_that_passes_before_the_first_token_is_408(
    house: CaseHouse, stream: bool
) -> None:
    """Case 25. P is busy for longer than the request may take."""
    hurried = house.add_front("router.request_timeout_s=0.2")

    async def test() -> None:
        await hurried.until_connected(2)
        house.p.steps.hold()
        response = await post(hurried, some_tokens(20), max_tokens=5, stream=stream)
        check_failed(response, 408, "deadline_exceeded")
        house.p.steps.release()
        await house.check_whole()

    house.run(test())


@STREAM
def test_a_prefill_worker_lost_before_the_first_token_is_503(model: Path, stream: bool) -> None:
    """Case 25. It stops within the second of four chunks, and there is no other."""
    overrides = (f"scheduler.prefill_chunk_tokens={CHUNK}", "router.no_worker_timeout_s=0.1")

    async def test(house: CaseHouse) -> None:
        house.p.steps.hold(after=1)
        request = post(house.router, some_tokens(4 * CHUNK), max_tokens=5, stream=stream)
        asking = asyncio.create_task(request)
        worker = house.p
        await worker.steps.until_held()
        stopping = asyncio.create_task(house.stop(worker))
        check_failed(await asking, 503, "no_worker")
        worker.steps.release()
        await stopping

    with case_house(settings(model, *overrides)) as house:
        house.run(test(house))


def test_a_failure_after_the_first_token_is_the_stream_s_last_event(house: CaseHouse) -> None:
    """Case 25. Then, and only then, is a 200 followed by an error; nothing says that it is done."""

    async def test() -> None:
        house.d.steps.spoil(1)
        response = await post(house.router, some_tokens(20), max_tokens=5, stream=True)
        assert response.status_code == 200
        lines = [line for line in response.text.splitlines() if line]
        assert "non_finite_logits" in lines[-1] and "choices" in lines[0]
        assert response.text.count('"error"') == 1 and "[DONE]" not in response.text
        await house.check_whole()

    house.run(test())


def test_a_failure_after_the_first_token_fails_a_plain_answer(house: CaseHouse) -> None:
    """Case 25. Half an answer is none."""

    async def test() -> None:
        house.d.steps.spoil(1)
        response = await post(house.router, some_tokens(20), max_tokens=5)
        check_failed(response, 500, "non_finite_logits")
        await house.check_whole()

    house.run(test())


@STREAM
def test_the_status_waits_for_the_first_token(house: CaseHouse, stream: bool) -> None:
    """Case 25. While P computes the last chunk, nothing has been sent."""

    async def test() -> None:
        house.p.steps.hold(after=1)
        body = {"model": house.router.model, "prompt": some_tokens(2 * CHUNK, seed=4 + stream)}
        opening = house.router.http.stream(
            "POST", "/v1/completions", json=body | {"stream": stream}
        )
        entering = asyncio.create_task(opening.__aenter__())
        await house.p.steps.until_held()
        await house.router.http.get("/health")
        assert not entering.done()
        house.p.steps.release()
        assert (await entering).status_code == 200
        await opening.__aexit__(None, None, None)
        await house.check_whole()

    house.run(test())


def test_requests_with_the_same_id_get_their_own_answers(house: CaseHouse) -> None:
    """Case 26. Sixteen at once, streamed and plain, all called the same."""
    shared = {"x-request-id": "the-same-for-all"}
    prompts = [some_tokens(20 + i, seed=700 + i) for i in range(16)]

    async def answer(number: int) -> list[Json]:
        body = {
            "model": house.router.model,
            "prompt": prompts[number],
            "max_tokens": 12,
            "temperature": 0,
            "logprobs": 2,
            "stream": number % 2 == 1,
        }
        response = await house.router.http.post("/v1/completions", json=body, headers=shared)
        assert response.status_code == 200
        assert response.headers["x-request-id"] == shared["x-request-id"]
        return events_of(response) if body["stream"] else [response.json()]

    async def test() -> None:
        house.p.posted.clear()
        answers = await together([answer(i) for i in range(16)])
        submits = [m for m in house.p.posted.messages if isinstance(m, Submit)]
        assert len({m.attempt.request_id for m in submits}) == 16
        assert len({m.attempt.transfer_id for m in submits}) == 16
        assert len({events[0]["id"] for events in answers}) == 16
        for prompt, events in zip(prompts, answers, strict=True):
            assert len({event["id"] for event in events}) == 1
            text = "".join(c["text"] for event in events for c in event["choices"])
            alone = await house.ask(prompt, max_tokens=12, cache_salt="alone")
            assert text == alone["choices"][0]["text"]

    house.run(test())


def test_one_of_two_with_the_same_id_can_leave(house: CaseHouse) -> None:
    """Case 26. A cancel is about one request, not about all that are called the same."""
    shared = {"x-request-id": "twins"}

    async def ask(prompt: list[int]) -> httpx.Response:
        body = {"model": house.router.model, "prompt": prompt, "max_tokens": 12, "temperature": 0}
        return await house.router.http.post("/v1/completions", json=body, headers=shared)

    async def test() -> None:
        house.p.posted.clear()
        house.p.steps.hold()
        leaving, staying = (asyncio.create_task(ask(some_tokens(40, seed=s))) for s in (801, 802))
        await house.p.posted.until(Submit, 2)
        leaving.cancel()
        await asyncio.wait({leaving})
        house.p.steps.release()
        answer = (await staying).json()
        alone = await house.ask(some_tokens(40, seed=802), max_tokens=12, cache_salt="alone")
        assert answer["choices"][0]["text"] == alone["choices"][0]["text"]

    house.run(test())


@STREAM
@pytest.mark.parametrize(
    ("sent", "echoed"),
    [
        (b"a" * 5000, "a" * MAX_CLIENT_ID_LENGTH),
        (b"id with\tcontrol\x7f", "id withcontrol"),
        ("naïve-7".encode(), "nave-7"),
        (b"\x7f\x7f", None),
        (None, None),
    ],
)
def test_an_id_is_echoed_and_bounded(
    house: CaseHouse, sent: bytes | None, echoed: str | None, stream: bool
) -> None:
    """Case 26. What can't be echoed safely is left out; who sends none learns ours."""
    headers = httpx.Headers([] if sent is None else [(b"x-request-id", sent)])

    async def test() -> None:
        for fields, status in (({"max_tokens": 2}, 200), ({"prompt": [10**6]}, 400)):
            body = {"model": house.router.model, "prompt": "Hello", "stream": stream} | fields
            response = await house.router.http.post("/v1/completions", json=body, headers=headers)
            assert response.status_code == status
            own = response.headers["x-request-id"]
            assert own == echoed if echoed else len(own) == 32

    house.run(test())
