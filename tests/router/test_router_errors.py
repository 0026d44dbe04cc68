"""Errors have one shape, every answer has its id, and every cause its code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import openai
import pytest
from fakes_house import MODEL, House, Texts, house
from fastapi import FastAPI, Response

from core.errors import (
    CancelledRequestError,
    DeadlineError,
    OverloadedError,
    TandemError,
    TransferError,
    UnavailableError,
    WorkerLostError,
)
from core.load import LoadReport
from core.request import AttemptFailed
from router.faults import fault_of
from router.http.errors import error_response, install_error_handlers
from router.http.reply import StreamReply
from router.http.request_ids import RequestIds


def in_house(texts: Texts, test: Callable[[House], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with house(texts, **settings) as h:
            await test(h)

    asyncio.run(run())


def body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": [1, 2, 3], "max_tokens": 4} | fields


@pytest.mark.parametrize(
    ("error", "status", "code", "retry_after_s"),
    [
        (UnavailableError("x", reason="no_worker"), 503, "no_worker", 1),
        (UnavailableError("x", reason="draining", retry_after_s=2.4), 503, "draining", 3),
        (WorkerLostError("x"), 503, "worker_lost", 1),
        (TransferError("x", reason="timeout"), 503, "transfer_failed", 1),
        (OverloadedError("x", reason="saturated"), 429, "rate_limit_exceeded", 1),
        (DeadlineError("x"), 408, "deadline_exceeded", None),
        (CancelledRequestError("x"), 499, "cancelled", None),
        (TandemError("x"), 500, "internal_error", None),
    ],
)
def test_every_cause_has_a_code_and_those_that_pass_say_when_to_come_back(
    error: TandemError, status: int, code: str, retry_after_s: int | None
) -> None:
    fault = fault_of(error)
    assert (fault.status, fault.code, fault.retry_after_s) == (status, code, retry_after_s)
    response = error_response(error)
    assert response.headers.get("retry-after") == (retry_after_s and str(retry_after_s))


PATHS = [
    ("GET", "/v1/models", 200),
    ("GET", f"/v1/models/{MODEL}", 200),
    ("GET", "/v1/models/other", 404),
    ("GET", "/health", 200),
    ("GET", "/ready", 200),
    ("GET", "/metrics", 200),
    ("GET", "/version", 200),
    ("GET", "/docs", 200),
    ("GET", "/openapi.json", 200),
    ("GET", "/v1/nothing", 404),
    ("POST", "/v1/chat/completions", 400),
    ("POST", "/v1/chat/completions/", 404),
    ("PUT", "/v1/chat/completions", 405),
    ("OPTIONS", "/v1/chat/completions", 204),
    ("OPTIONS", "/v1/nothing", 404),
    ("HEAD", "/v1/models", 200),
    ("HEAD", "/v1/completions", 405),
    ("POST", "/v1/requests/x/cancel", 404),
    ("POST", "/v1/embeddings", 400),
    ("GET", "/v1/responses/resp_1", 404),
]


@pytest.mark.parametrize("sent", ["", "mine"])
def test_every_answer_has_an_id_the_client_s_if_it_sent_one(texts: Texts, sent: str) -> None:
    async def test(h: House) -> None:
        headers = {"x-request-id": sent} if sent else {}
        for method, path, status in PATHS:
            response = await h.http.request(method, path, headers=headers)
            assert response.status_code == status, (method, path, response.text)
            assert response.headers.get_list("x-request-id") == [
                sent or response.headers["x-request-id"]
            ]
            if status >= 400 and method != "HEAD":
                error = response.json()["error"]
                assert set(error) == {"message", "type", "param", "code"}
                assert error["type"] == "invalid_request_error" and error["code"]

    in_house(texts, test)


def test_a_wrong_method_is_told_the_right_ones(texts: Texts) -> None:
    async def test(h: House) -> None:
        for method in ("DELETE", "OPTIONS"):
            response = await h.http.request(method, "/v1/models")
            assert response.headers["allow"] == "GET, HEAD, OPTIONS"
        response = await h.http.put("/v1/responses/resp_1")
        assert response.headers["allow"] == "DELETE, GET, OPTIONS"

    in_house(texts, test)


@pytest.mark.parametrize(
    "path",
    ["embeddings", "moderations", "images/generations", "images/edits", "audio/speech", "rerank"],
)
def test_what_no_model_here_can_do_is_refused_by_name(texts: Texts, path: str) -> None:
    async def test(h: House) -> None:
        response = await h.http.post(f"/v1/{path}", json={"model": MODEL, "input": "x"})
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (400, "unsupported_endpoint")
        assert MODEL in error["message"]

    in_house(texts, test, ready=False)


def test_a_body_that_is_no_json_by_its_own_word_is_415(texts: Texts) -> None:
    async def test(h: House) -> None:
        headers = {"content-type": "text/plain"}
        response = await h.http.post("/v1/responses", content=b"{}", headers=headers)
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (415, "unsupported_content_type")

    in_house(texts, test, ready=False)


def test_each_503_tells_its_own_reason(texts: Texts) -> None:
    async def test(h: House) -> None:
        async def ask() -> tuple[int, str]:
            response = await h.http.post("/v1/completions", json=body())
            assert int(response.headers["retry-after"]) >= 1
            return response.status_code, response.json()["error"]["code"]

        async def unready(load: LoadReport) -> None:
            h.p.report(load)
            await h.until(lambda: any(seen == load for _, seen in h.router.fleet.loads()))

        await unready(LoadReport(draining=True))
        assert await ask() == (503, "draining")
        await unready(LoadReport(ready=False))
        assert await ask() == (503, "no_worker")
        await unready(LoadReport(kv_blocks={"free": 100}))
        h.p.failures += [AttemptFailed("", "worker_lost", "gone", True)] * 9
        assert await ask() == (503, "worker_lost")
        h.router.door.admission.draining = True
        assert await ask() == (503, "draining")

    in_house(texts, test, overrides={"router": {"no_worker_timeout_s": 0.1}})


def test_openai_s_client_raises_what_it_would_for_openai(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.failures.append(AttemptFailed("", "saturated", "full", False))
        with pytest.raises(openai.RateLimitError) as limited:
            await h.openai.completions.create(model=MODEL, prompt="x", max_tokens=2)
        assert limited.value.request_id == limited.value.response.headers["x-request-id"]
        h.d.failures.append(AttemptFailed("", "internal_error", "a bug", False))
        stream = await h.openai.completions.create(
            model=MODEL, prompt="x", max_tokens=4, stream=True
        )
        with pytest.raises(openai.APIError, match="a bug") as failed:
            async for _ in stream:
                pass
        assert failed.value.code == "internal_error"

    in_house(texts, test)


ORIGIN = "https://pages.example"


def preflight() -> dict[str, str]:
    return {"origin": ORIGIN, "access-control-request-method": "POST"}


def test_browsers_are_let_in_only_from_origins_that_are_named(texts: Texts) -> None:
    async def closed(h: House) -> None:
        response = await h.http.options("/v1/models", headers=preflight())
        assert "access-control-allow-origin" not in response.headers
        response = await h.http.get("/v1/models", headers={"origin": ORIGIN})
        assert "access-control-allow-origin" not in response.headers

    async def opened(h: House) -> None:
        response = await h.http.options("/v1/completions", headers=preflight())
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == ORIGIN
        response = await h.http.get("/v1/nothing", headers={"origin": ORIGIN})
        assert response.headers["access-control-allow-origin"] == ORIGIN
        assert "x-request-id" in response.headers["access-control-expose-headers"]
        other = preflight() | {"origin": "https://other.example"}
        response = await h.http.options("/v1/completions", headers=other)
        assert "access-control-allow-origin" not in response.headers

    in_house(texts, closed, ready=False)
    origins = f"https://a.example, {ORIGIN}"
    in_house(texts, opened, ready=False, overrides={"router": {"cors_origins": origins}})


def broken_app() -> FastAPI:
    """Has bugs of ours: one before anything is sent, one in the middle of a stream."""
    app = FastAPI()
    app.add_middleware(RequestIds)
    install_error_handlers(app)

    @app.get("/at-once")
    async def at_once() -> Response:
        raise ZeroDivisionError("a secret")

    @app.get("/midway")
    async def midway() -> Response:
        async def frames() -> AsyncIterator[bytes]:
            yield b"data: {}\n\n"
            raise ZeroDivisionError("a secret")

        return StreamReply(frames(), {"x-request-id": "mine"})  # type: ignore[arg-type]

    return app


@pytest.mark.parametrize(("path", "status"), [("/at-once", 500), ("/midway", 200)])
def test_a_bug_is_told_without_its_details(path: str, status: int) -> None:
    async def test() -> None:
        transport = httpx.ASGITransport(broken_app(), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://house") as client:
            response = await client.get(path, headers={"x-request-id": "mine"})
        assert (response.status_code, response.headers["x-request-id"]) == (status, "mine")
        assert '"internal_error"' in response.text and "secret" not in response.text
        assert "[DONE]" not in response.text

    asyncio.run(test())
