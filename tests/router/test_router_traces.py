"""What a router tells of its requests: spans of every attempt, log lines, and recent requests."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fakes_house import MODEL, House, Texts, house
from fakes_otlp_collector import Seen, grpc_collector
from fakes_worker import Trap

from cluster.logs import JsonLines
from core.request import AttemptFailed
from core.trace_context import attempt_span_id, decode_context

PROMPT = list(range(100, 140))
BROKEN = AttemptFailed("", "internal_error", "a bug", False)
ADMIN_TOKEN = "an-admin-token-of-some-length"
SHOWN = {"observability": {"debug_requests": "public", "debug_ring_size": 3}}


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": PROMPT, "max_tokens": 6, "seed": 1} | fields


def in_house(texts: Texts, test: Callable[[House], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with house(texts, **settings) as h:
            await test(h)

    asyncio.run(run())


def spans_of(
    texts: Texts,
    test: Callable[[House], Awaitable[None]],
    observability: dict[str, object] | None = None,
    **settings: Any,
) -> list[Seen]:
    """What a router sent until it had stopped."""
    with grpc_collector() as (collector, endpoint):
        overrides = {"observability": {"otlp_endpoint": endpoint} | (observability or {})}
        in_house(texts, test, overrides=overrides, **settings)
        return collector.spans


def test_a_retry_is_a_second_attempt_beside_the_failed_one(texts: Texts) -> None:
    async def test(h: House) -> None:
        assert (await h.http.post("/v1/completions", json=body())).status_code == 200
        contexts = [decode_context(a.trace_context) for p in h.prefill for a in p.attempts]
        ids = {attempt_span_id(a.transfer_id) for p in h.prefill for a in p.attempts}
        assert {c.span_id for c in contexts if c is not None} == ids and len(ids) == 2

    spans = spans_of(texts, test, prefill=2, trap=Trap(position=0))
    (root,) = [s for s in spans if not s.parent_id]
    attempts = [s for s in spans if s.name == "attempt"]
    assert [s.parent_id for s in attempts] == [root.id, root.id]
    first, second = sorted(attempts, key=lambda s: s.span.start_time_unix_nano)
    assert first.failed and not second.failed and not root.failed
    assert first.attributes["error.type"] == "worker_lost"
    assert first.attributes["tandem.failed_leg"] == "prefill"
    assert first.attributes["tandem.prefill_worker"] != second.attributes["tandem.prefill_worker"]
    assert (first.attributes["tandem.attempt.number"], root.attributes["tandem.num_attempts"]) == (
        1,
        2,
    )


def test_a_request_that_fails_is_a_span_that_failed(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.failures.append(BROKEN)
        assert (await h.http.post("/v1/completions", json=body())).status_code == 500

    (root,) = [s for s in spans_of(texts, test) if not s.parent_id]
    assert root.failed and root.attributes["error.type"] == "internal_error"


def test_a_request_that_was_not_let_in_is_told_as_well(texts: Texts) -> None:
    async def test(h: House) -> None:
        headers = {"x-request-id": "refused"}
        refused = await h.http.post("/v1/completions", json=body(model="x"), headers=headers)
        assert refused.status_code == 404
        (shown,) = (await h.http.get("/debug/requests/refused")).json()["requests"]
        assert (shown["outcome"], shown["num_attempts"]) == ("model_not_found", 0)
        page = (await h.http.get("/metrics")).text
        assert 'outcome="model_not_found"' in page

    (root,) = spans_of(texts, test, {"debug_requests": "public"})
    assert root.failed and root.attributes["error.type"] == "model_not_found"


def test_only_the_asked_share_of_requests_is_traced(texts: Texts) -> None:
    async def test(h: House) -> None:
        assert (await h.http.post("/v1/completions", json=body())).status_code == 200
        headers = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
        await h.http.post("/v1/completions", json=body(), headers=headers)

    spans = spans_of(texts, test, {"trace_sample_ratio": 0.0})
    assert {s.trace_id for s in spans} == {"a" * 32}


def test_a_line_of_a_failed_attempt_has_all_ids(
    texts: Texts, caplog: pytest.LogCaptureFixture
) -> None:
    lines = JsonLines("router")
    caplog.handler.setFormatter(lines)

    async def test(h: House) -> None:
        headers = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
        request = body(user="somebody")
        response = await h.http.post("/v1/completions", json=request, headers=headers)
        assert response.status_code == 200

    with caplog.at_level(logging.INFO):
        in_house(texts, test, prefill=2, trap=Trap(position=0))
    written = [json.loads(line) for line in caplog.text.splitlines() if line.startswith("{")]
    (failed,) = [line for line in written if "failed on" in line["message"]]
    assert failed["level"] == "warning" and failed["process"] == "router"
    assert failed["trace_id"] == "a" * 32 and failed["worker"].startswith("prefill-")
    assert failed["request_id"] in failed["message"] and failed["tenant"] == "somebody"
    assert failed["time"].endswith("Z")


@pytest.mark.parametrize("asked", [True, False])
def test_ended_requests_have_a_line_if_asked_for_and_never_their_text(
    texts: Texts, caplog: pytest.LogCaptureFixture, asked: bool
) -> None:
    async def test(h: House) -> None:
        for stream in (True, False):
            request = body(prompt="very particular words", stream=stream)
            assert (await h.http.post("/v1/completions", json=request)).status_code == 200

    with caplog.at_level(logging.DEBUG, logger="router"):
        in_house(texts, test, overrides={"observability": {"log_requests": asked}})
    assert caplog.text.count(" finished: ") == (2 if asked else 0)
    assert "particular" not in caplog.text


def test_requests_are_shown_while_they_run_and_after(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.gate.clear()
        headers = {"x-request-id": "mine"}
        asking = asyncio.create_task(h.http.post("/v1/completions", json=body(), headers=headers))
        await h.p.until(lambda w: len(w.attempts) == 1)
        (shown,) = (await h.http.get("/debug/requests/mine")).json()["requests"]
        assert shown["state"] in ("waiting", "running") and shown["outcome"] is None
        h.p.gate.set()
        answer = (await asking).json()
        listed = (await h.http.get("/debug/requests")).json()["requests"]
        assert [r["client_request_id"] for r in listed] == ["mine"]
        (shown,) = (await h.http.get(f"/debug/requests/{answer['id']}")).json()["requests"]
        assert (shown["state"], shown["outcome"]) == ("ended", "finished")
        assert shown["prompt_tokens"] == len(PROMPT) and shown["output_tokens"] == 6
        parts = shown["queue_s"] + shown["tokenize_s"] + shown["prefill_s"]
        assert abs(parts - shown["ttft_s"]) < 1e-6
        # Also what a worker says after the answer has gone
        (attempt,) = shown["attempts"]
        if "decode" in attempt["legs"]:
            assert attempt["legs"]["decode"]["transfer_s"] == 0.01
        running = await h.http.get("/debug/requests", params={"state": "running"})
        assert running.json()["requests"] == []

    in_house(texts, test, overrides=SHOWN)


def test_only_the_last_ended_requests_are_remembered(texts: Texts) -> None:
    async def test(h: House) -> None:
        ids = [(await h.http.post("/v1/completions", json=body())).json()["id"] for _ in range(5)]
        listed = (await h.http.get("/debug/requests")).json()["requests"]
        assert [f"cmpl-{r['request_id']}" for r in listed] == ids[:1:-1]
        assert (await h.http.get("/debug/requests", params={"limit": 1})).json()["requests"] == (
            listed[:1]
        )
        gone = await h.http.get(f"/debug/requests/{ids[0]}")
        assert gone.status_code == 404 and gone.json()["error"]["code"] == "request_not_found"

    in_house(texts, test, overrides=SHOWN)


@pytest.mark.parametrize(("where", "status"), [("admin", 200), ("public", 200), ("off", 404)])
def test_requests_are_shown_to_operators_unless_unwanted(
    texts: Texts, tmp_path: Path, where: str, status: int
) -> None:
    async def test(h: House) -> None:
        assert (await h.http.post("/v1/completions", json=body())).status_code == 200
        public = await h.http.get("/debug/requests")
        assert public.status_code == (200 if where == "public" else 404)
        url = f"http://127.0.0.1:{h.ports.admin}/debug/requests"
        assert (await h.http.get(url)).status_code == 401
        headers = {"authorization": f"Bearer {ADMIN_TOKEN}"}
        shown = await h.http.get(url, headers=headers)
        assert shown.status_code == status
        assert status == 404 or len(shown.json()["requests"]) == 1

    overrides: dict[str, dict[str, object]] = {
        "router": {"admin_port": 0, "admin_token": ADMIN_TOKEN},
        "tenants": {"file": str(tmp_path / "tenants.db")},
        "observability": {"debug_requests": where},
    }
    in_house(texts, test, overrides=overrides)


def test_without_an_admin_server_requests_are_shown_nowhere_unless_wanted(texts: Texts) -> None:
    async def test(h: House) -> None:
        assert (await h.http.post("/v1/completions", json=body())).status_code == 200
        assert (await h.http.get("/debug/requests")).status_code == 404

    in_house(texts, test, overrides={"observability": {"debug_requests": "admin"}})


@pytest.mark.parametrize(("host", "status"), [("127.0.0.1", 200), ("0.0.0.0", 404)])
def test_by_default_only_this_machine_sees_requests(texts: Texts, host: str, status: int) -> None:
    async def test(h: House) -> None:
        assert (await h.http.get("/debug/requests")).status_code == status

    in_house(texts, test, overrides={"router": {"http_host": host}})
