"""What the status line says, when it leaves, and what the operator's endpoints say."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
from fakes_house import MODEL, House, Texts, house
from fakes_pull import DEADLINE_S
from fakes_worker import Trap
from prometheus_client.parser import text_string_to_metric_families

from core import metric_names as names
from core.histogram import Histogram
from core.load import LoadReport
from core.request import AttemptFailed

PROMPT = list(range(100, 140))
BROKEN = AttemptFailed("", "internal_error", "a bug", False)


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": PROMPT, "max_tokens": 6, "seed": 1} | fields


def in_house(texts: Texts, test: Callable[[House], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with house(texts, **settings) as h:
            await test(h)

    asyncio.run(run())


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in response.text.split("\n\n")]
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_the_status_waits_for_the_first_token(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.gate.clear()
        h.d.gate.clear()
        request = h.http.build_request("POST", "/v1/chat/completions", json=CHAT)
        sending = asyncio.create_task(h.http.send(request, stream=True))
        await h.p.until(lambda w: len(w.attempts) == 1)
        # The router has long sent what it could by the time another request is through.
        assert (await h.http.get("/health")).status_code == 200
        assert not sending.done()
        h.p.gate.set()
        response = await sending
        assert response.status_code == 200
        lines = response.aiter_lines()
        first = json.loads((await anext(lines)).removeprefix("data: "))
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        await response.aclose()

    in_house(texts, test)


CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "stream": True}


def test_a_stream_that_fails_before_content_is_no_200(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.failures.append(BROKEN)
        response = await h.http.post("/v1/completions", json=body(stream=True))
        assert response.status_code == 500
        assert response.json()["error"]["type"] == "server_error"

    in_house(texts, test)


def test_a_stream_that_fails_midway_ends_with_one_error_event(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.d.failures.append(BROKEN)
        response = await h.http.post("/v1/completions", json=body(stream=True))
        assert response.status_code == 200
        *_, last = events(response)
        assert last["error"]["message"] == "a bug"
        assert "[DONE]" not in response.text
        assert response.text.count('"error"') == 1

    in_house(texts, test)


def test_without_workers_the_answer_is_503_with_a_reason(texts: Texts) -> None:
    async def test(h: House) -> None:
        response = await h.http.post("/v1/completions", json=body())
        assert response.status_code == 503
        error = response.json()["error"]
        assert error["code"] == "no_worker"
        assert "no prefill worker" in error["message"]
        assert int(response.headers["retry-after"]) >= 1

    overrides = {"router": {"no_worker_timeout_s": 0.1}}
    in_house(texts, test, prefill=0, overrides=overrides)


def test_a_request_waits_for_the_worker_that_is_about_to_come(texts: Texts) -> None:
    async def test(h: House) -> None:
        await h.p.die()
        await h.until_connected(1)
        asking = asyncio.create_task(h.http.post("/v1/completions", json=body()))
        await h.restart(h.p)
        assert (await asking).status_code == 200

    in_house(texts, test)


def test_full_workers_are_429(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.report(LoadReport(num_waiting=5))
        await h.until(lambda: h.router.fleet.readiness() is not None)
        response = await h.http.post("/v1/completions", json=body())
        assert response.status_code == 429
        assert response.json()["error"]["type"] == "rate_limit_error"

    overrides = {"router": {"no_worker_timeout_s": 0.1}, "scheduler": {"max_num_waiting": 5}}
    in_house(texts, test, overrides=overrides)


def test_a_full_house_is_429_at_once(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.gate.clear()
        asking = asyncio.create_task(h.http.post("/v1/completions", json=body()))
        await h.p.until(lambda w: len(w.attempts) == 1)
        response = await h.http.post("/v1/completions", json=body())
        assert response.status_code == 429
        assert response.json()["error"]["code"] == "rate_limit_exceeded"
        h.p.gate.set()
        assert (await asking).status_code == 200

    in_house(texts, test, overrides={"router": {"max_num_requests": 1}})


def test_a_deadline_ends_the_request_on_both_sides(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.gate.clear()
        response = await h.http.post("/v1/completions", json=body())
        assert response.status_code == 408
        assert response.json()["error"]["code"] == "deadline_exceeded"
        await h.p.until(lambda w: len(w.cancels) == 1)
        assert 0 < h.p.attempts[0].deadline_s <= 1.0

    in_house(texts, test, overrides={"router": {"request_timeout_s": 1.0}})


def test_two_clients_with_one_request_id_get_their_own_answers(texts: Texts) -> None:
    async def test(h: House) -> None:
        headers = {"x-request-id": "same"}

        async def ask(seed: int) -> httpx.Response:
            return await h.http.post("/v1/completions", json=body(seed=seed), headers=headers)

        alone = [(await ask(seed)).json()["choices"] for seed in (1, 2)]
        together = await asyncio.gather(ask(1), ask(2))
        assert [r.json()["choices"] for r in together] == alone
        assert [r.headers["x-request-id"] for r in together] == ["same", "same"]
        assert len({a.request_id for a in h.p.attempts}) == 4
        assert len({r.json()["id"] for r in together}) == 2

    in_house(texts, test)


def test_the_echoed_request_id_is_bounded_and_printable(texts: Texts) -> None:
    async def test(h: House) -> None:
        headers = {"x-request-id": "a" * 500}
        response = await h.http.post("/v1/completions", json=body(), headers=headers)
        assert response.headers["x-request-id"] == "a" * 128
        odd = httpx.Headers([(b"x-request-id", b"\xe9ok\xff")])
        response = await h.http.post("/v1/completions", json=body(), headers=odd)
        assert response.headers["x-request-id"] == "ok"
        response = await h.http.post("/v1/completions", json=body())
        assert response.headers["x-request-id"] in response.json()["id"]

    in_house(texts, test)


def test_bodies_that_are_no_requests_are_refused_with_a_reason(texts: Texts) -> None:
    """Faults found before the request has an id of its own echo the client's all the same."""

    async def test(h: House) -> None:
        headers = {"x-request-id": "mine"}
        for content, status, code in (
            (b"{", 400, "invalid_json"),
            (b"", 400, "invalid_json"),
            (b"[]", 400, "invalid_request"),
            (b'{"model":"fake","prompt":"x","temperature":NaN}', 400, "invalid_type"),
            (b'{"model":"fake","prompt":"x","temperature":1e999}', 400, "invalid_type"),
            (b'{"model":"fake","prompt":"\\ud800"}', 400, "invalid_json"),
            (b'{"model":"' + b"x" * 2000 + b'"}', 413, "body_too_large"),
        ):
            response = await h.http.post("/v1/completions", content=content, headers=headers)
            assert response.headers["x-request-id"] == "mine"
            assert (response.status_code, response.json()["error"]["code"]) == (status, code)
        deep = await h.http.post("/v1/completions", content=b"[" * 999)
        assert deep.status_code == 400
        chunked = await h.http.post("/v1/completions", content=_pieces())
        assert chunked.status_code == 413

    in_house(texts, test, overrides={"router": {"max_body_bytes": 1000}})


async def _pieces() -> Any:
    for _ in range(20):
        yield b" " * 100


def test_unknown_paths_and_methods_have_openai_s_error_shape(texts: Texts) -> None:
    async def test(h: House) -> None:
        for method, path, status in (("GET", "/v1/nothing", 404), ("GET", "/v1/completions", 405)):
            response = await h.http.request(method, path)
            assert response.status_code == status
            assert set(response.json()["error"]) == {"message", "type", "param", "code"}

    in_house(texts, test)


def test_ready_says_whether_a_pair_exists(texts: Texts) -> None:
    async def test(h: House) -> None:
        assert (await h.http.get("/ready")).status_code == 200
        await h.d.die()
        await h.until_connected(1)
        response = await h.http.get("/ready")
        assert response.status_code == 503
        assert "no decode worker" in response.json()["error"]["message"]
        assert (await h.http.get("/health")).status_code == 200
        assert (await h.http.get("/live")).status_code == 200
        await h.restart(h.d)
        assert (await h.http.get("/ready")).status_code == 200
        h.p.report(LoadReport(ready=False))
        await h.until(lambda: h.router.fleet.readiness() is not None)
        assert (await h.http.get("/ready")).status_code == 503

    in_house(texts, test)


def test_timings_add_up_to_the_time_to_first_token(texts: Texts) -> None:
    async def test(h: House) -> None:
        request = body(include_timings=True)
        tandem = (await h.http.post("/v1/completions", json=request)).json()["tandem"]
        parts = tandem["queue_s"] + tandem["tokenize_s"] + tandem["prefill_s"]
        assert abs(parts - tandem["ttft_s"]) < 1e-6
        assert tandem["handoff_gap_s"] > 0
        assert tandem["total_s"] >= tandem["ttft_s"] + tandem["handoff_gap_s"]
        assert (tandem["prefill_worker"], tandem["decode_worker"]) == ("prefill-0", "decode-0")
        assert (tandem["seed"], tandem["num_attempts"]) == (1, 1)
        streamed = events(await h.http.post("/v1/completions", json=request | {"stream": True}))
        assert set(streamed[-1]["tandem"]) == set(tandem)
        assert "tandem" not in (await h.http.post("/v1/completions", json=body())).json()

    in_house(texts, test)


def test_metrics_count_what_happened(texts: Texts) -> None:
    async def test(h: House) -> None:
        load = LoadReport(num_running=3, kv_unfilled_slots=9, kv_blocks={"free": 7, "running": 5})
        assert (await h.http.post("/v1/completions", json=body(n=2))).status_code == 200
        assert (await h.http.post("/v1/completions", json=body(model="x"))).status_code == 404
        h.d.report(load)
        await h.until(lambda: any(load == seen for _, seen in h.router.fleet.loads()))
        samples, who = await samples_of(h), (MODEL, "standard")
        assert samples[(names.REQUESTS_TOTAL, MODEL, "finished", "length", "standard")] == 1
        assert samples[(names.REQUESTS_TOTAL, "", MODEL, "model_not_found", "standard")] == 1
        assert (
            samples[(names.REQUESTS_RUNNING, *who)] == samples[(names.REQUESTS_WAITING, *who)] == 0
        )
        assert samples[(names.OUTPUT_TOKENS_TOTAL, *who)] == 12
        assert samples[(names.PROMPT_TOKENS_TOTAL, *who)] == len(PROMPT)
        assert samples[(names.RETRIES_TOTAL, *who)] == 2
        assert samples[(f"{names.TTFT_SECONDS}_count", *who)] == 1
        assert samples[(f"{names.INTER_TOKEN_SECONDS}_count", *who)] == 10
        assert samples[(names.WORKER_KV_BLOCKS, "decode", "decode-0", "running")] == 5
        assert samples[(names.WORKER_KV_UNFILLED_SLOTS, "decode", "decode-0")] == 9
        assert samples[(names.WORKER_RUNNING, "decode", "decode-0")] == 3

    in_house(texts, test, decode=1, prefill=2, trap=Trap(position=0))


def test_metrics_show_each_worker_and_forget_one_that_has_gone(texts: Texts) -> None:
    async def test(h: House) -> None:
        load = LoadReport(
            kv_blocks={"free": 7, "leased": 5},
            last_step_age_s=0.5,
            kv_transfer_bytes=4096,
            kv_transfer_s=Histogram((0.1, 1.0), (2, 1, 1), 5.5),
            kv_transfer_failures={"timeout": 3},
            cancel_to_free_s=Histogram((0.5,), (4, 0), 0.25),
        )
        h.p.report(load)
        await h.until(lambda: any(load == seen for _, seen in h.router.fleet.loads()))
        samples, who = await samples_of(h), ("prefill", "prefill-0")
        assert samples[(names.WORKER_KV_BLOCKS, "leased", *who)] == 5
        assert samples[(names.WORKER_LAST_STEP_AGE_SECONDS, *who)] == 0.5
        assert samples[(names.TRANSFER_BYTES_TOTAL, *who)] == 4096
        assert samples[(names.TRANSFER_FAILURES_TOTAL, *who, "timeout")] == 3
        assert samples[(f"{names.TRANSFER_SECONDS}_bucket", "0.1", *who)] == 2
        assert samples[(f"{names.TRANSFER_SECONDS}_bucket", "1.0", *who)] == 3
        assert samples[(f"{names.TRANSFER_SECONDS}_bucket", "+Inf", *who)] == 4
        assert samples[(f"{names.TRANSFER_SECONDS}_sum", *who)] == 5.5
        assert samples[(f"{names.CANCEL_TO_FREE_SECONDS}_count", *who)] == 4
        assert {
            "tandem_kv_blocks",
            "tandem_kv_transfer_seconds_bucket",
            "tandem_kv_transfer_bytes_total",
            "tandem_kv_transfer_failures_total",
            "tandem_cancel_to_free_seconds_count",
            "tandem_last_step_age_seconds",
        } <= {key[0] for key in samples}, "what dashboards and alerts ask for"
        await h.p.die()
        await h.until_connected(1)
        workers = {value for key in await samples_of(h) for value in key[1:]}
        assert "decode-0" in workers and "prefill-0" not in workers

    in_house(texts, test)


async def samples_of(h: House) -> dict[tuple[str, ...], float]:
    """Every sample of the metrics page by its name and the sorted values of its labels."""
    return {
        (s.name, *sorted(s.labels.values())): s.value
        for family in text_string_to_metric_families((await h.http.get("/metrics")).text)
        for s in family.samples
    }


def test_stopping_refuses_new_requests_and_lets_the_present_ones_end(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.gate.clear()
        asking = asyncio.create_task(h.http.post("/v1/completions", json=body()))
        await h.p.until(lambda w: len(w.attempts) == 1)
        stopping = asyncio.create_task(h.router.stop(DEADLINE_S))
        async with asyncio.timeout(DEADLINE_S):
            while (await h.http.get("/ready")).status_code == 200:
                continue
        refused = await h.http.post("/v1/completions", json=body())
        assert refused.status_code == 503
        h.p.gate.set()
        assert (await asking).status_code == 200
        await stopping

    in_house(texts, test)


def test_stopping_fails_what_outlives_the_grace(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.d.gate.clear()
        plain = asyncio.create_task(h.http.post("/v1/completions", json=body()))
        stream = asyncio.create_task(h.http.post("/v1/completions", json=body(stream=True)))
        await h.d.until(lambda w: len(w.attempts) == 2)
        await h.router.stop(0.0)
        assert (await plain).status_code == 503
        assert "shutting down" in events(await stream)[-1]["error"]["message"]
        await h.d.until(lambda w: not w.num_open)

    in_house(texts, test)
