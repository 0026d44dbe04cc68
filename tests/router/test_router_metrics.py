"""The metrics page under our names and vLLM's: phases that add up, bounded labels, shares."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from fakes_house import MODEL, House, Texts, house
from prometheus_client.parser import text_string_to_metric_families

from bench.exposition import gauge, histogram
from core import metric_names as names
from core.load import LoadReport, StepTotals

PROMPT = list(range(100, 140))
ENGINE = f'engine="router",model_name="{MODEL}"'
STEPS = StepTotals(
    step_s=2.0,
    operations=3e9,
    read_bytes=4e9,
    peak_operations_per_s=1e12,
    peak_read_bytes_per_s=0.0,
    mfu=0.25,
    mbu=0.0,
)


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": PROMPT, "max_tokens": 6, "seed": 1} | fields


def in_house(texts: Texts, test: Callable[[House], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with house(texts, **settings) as h:
            await test(h)

    asyncio.run(run())


def test_the_phases_of_ttft_add_up_over_all_requests(texts: Texts) -> None:
    """Also where some never have a first token: those are in none of them."""

    async def test(h: House) -> None:
        asks = [h.http.post("/v1/completions", json=body(seed=i, n=1 + i % 2)) for i in range(24)]
        asks += [h.http.post("/v1/completions", json=body(max_tokens=10**8)) for _ in range(3)]
        statuses = [response.status_code for response in await asyncio.gather(*asks)]
        assert statuses.count(200) == 24 and statuses.count(400) == 3
        page = (await h.http.get("/metrics")).text
        ttft, *phases = (
            histogram(page, name)
            for name in (
                names.TTFT_SECONDS,
                names.TTFT_QUEUE_SECONDS,
                names.TTFT_TOKENIZE_SECONDS,
                names.TTFT_PREFILL_SECONDS,
            )
        )
        assert [phase.count for phase in phases] == [ttft.count] * 3 == [24] * 3
        assert abs(sum(phase.sum for phase in phases) - ttft.sum) <= 0.05 * ttft.sum

    in_house(texts, test)


def test_what_runs_and_what_waits_is_told_apart(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.tokens_leave.clear()
        running = asyncio.create_task(h.http.post("/v1/completions", json=body()))
        await h.p.until(lambda w: len(w.attempts) == 1)
        while not any(record.state == "running" for record in h.router.observer.ring.running()):
            await asyncio.sleep(0)
        h.p.report(LoadReport(ready=False))
        await h.until(lambda: h.router.fleet.readiness() is not None)
        waiting = asyncio.create_task(h.http.post("/v1/completions", json=body()))
        while len(list(h.router.observer.ring.running())) < 2:
            await asyncio.sleep(0)
        page = (await h.http.get("/metrics")).text
        labels = f'model="{MODEL}",priority_class="standard"'
        assert gauge(page, names.REQUESTS_RUNNING)[labels] == 1
        assert gauge(page, names.REQUESTS_WAITING)[labels] == 1
        assert gauge(page, "vllm:num_requests_running") == {ENGINE: 1}
        assert gauge(page, "vllm:num_requests_waiting") == {ENGINE: 1}
        h.p.report(LoadReport())
        h.p.tokens_leave.set()
        assert [r.status_code for r in await asyncio.gather(running, waiting)] == [200, 200]

    in_house(texts, test)


def test_vllm_s_names_say_the_same(texts: Texts) -> None:
    async def test(h: House) -> None:
        for n in (1, 2):
            assert (await h.http.post("/v1/completions", json=body(n=n))).status_code == 200
        load = LoadReport(kv_blocks={"free": 6, "cached": 2, "running": 1, "leased": 1})
        h.d.report(load)
        await h.until(lambda: any(load == seen for _, seen in h.router.fleet.loads()))
        page = (await h.http.get("/metrics")).text
        for ours, theirs in (
            (names.TTFT_SECONDS, "time_to_first_token_seconds"),
            (names.INTER_TOKEN_SECONDS, "inter_token_latency_seconds"),
            (names.INTER_TOKEN_SECONDS, "time_per_output_token_seconds"),
            (names.E2E_SECONDS, "e2e_request_latency_seconds"),
            (names.REQUEST_OUTPUT_TOKENS, "request_generation_tokens"),
        ):
            assert histogram(page, f"vllm:{theirs}") == histogram(page, ours)
            assert histogram(page, ours).count > 0
        assert gauge(page, "vllm:prompt_tokens_total") == {ENGINE: 2 * len(PROMPT)}
        assert gauge(page, "vllm:generation_tokens_total") == {ENGINE: 18}
        success = gauge(page, "vllm:request_success_total")
        assert success[f'engine="router",finished_reason="length",model_name="{MODEL}"'] == 2
        usage = gauge(page, "vllm:kv_cache_usage_perc")
        who = f'engine="decode-0",model_name="{MODEL}"'
        assert abs(usage[who] - 0.2) < 1e-9 and gauge(page, "vllm:gpu_cache_usage_perc") == usage

    in_house(texts, test)


def test_vllm_s_names_can_be_left_out(texts: Texts) -> None:
    async def test(h: House) -> None:
        assert "vllm" not in (await h.http.get("/metrics")).text

    in_house(texts, test, overrides={"observability": {"vllm_metric_names": False}})


def test_shares_are_shown_of_workers_that_know_their_peaks(texts: Texts) -> None:
    async def test(h: House) -> None:
        load = LoadReport(steps=STEPS)
        h.p.report(load)
        await h.until(lambda: any(load == seen for _, seen in h.router.fleet.loads()))
        page, who = (await h.http.get("/metrics")).text, 'role="prefill",worker="prefill-0"'
        assert gauge(page, names.WORKER_MFU) == {who: 0.25}
        assert gauge(page, names.WORKER_PEAK_OPERATIONS) == {who: 1e12}
        assert gauge(page, names.WORKER_MBU) == {}
        assert gauge(page, names.WORKER_OPERATIONS_TOTAL) == {who: 3e9}
        assert gauge(page, names.WORKER_STEPS_SECONDS_TOTAL) == {who: 2.0}

    in_house(texts, test)


def test_clients_cannot_make_labels(texts: Texts) -> None:
    async def test(h: House) -> None:
        fields = ({"model": "odd"}, {"user": "odd"}, {"cache_salt": "odd"}, {"priority": 77})
        for field in fields:
            await h.http.post(
                "/v1/completions", json=body(**field), headers={"x-request-id": "odd"}
            )
        families = text_string_to_metric_families((await h.http.get("/metrics")).text)
        labels = {v for f in families for s in f.samples for v in s.labels.values()}
        assert "odd" not in labels and "77" not in labels

    in_house(texts, test)
