"""Bodies that break on their way, come slowly or claim to be something else: refused, never stuck.

What hypothesis makes is a good body that something was done to: cut, filled with rubbish, nested,
with numbers that JSON has no place for.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fakes_house import MODEL, House, Texts, house
from fakes_pull import DEADLINE_S
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from router.http import body as body_reader

GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": MODEL,
        "messages": [{"role": "user", "content": "Hé 你好"}],
        "max_tokens": 2,
        "temperature": 0.5,
    },
    "/v1/completions": {"model": MODEL, "prompt": "Hé 你好", "max_tokens": 2, "temperature": 0.5},
    "/v1/responses": {"model": MODEL, "input": "Hé", "max_output_tokens": 2, "temperature": 0.5},
    "/tokenize": {"prompt": "Hé 你好"},
}
LITERALS = ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "-0", "0x10", "01", "1.", "'a'"]
LITERALS += ["undefined", "true false", "\\ud800", '"\\ud800"', '"\\u0000"', "{}[]", "", "\ufeff1"]
MANY = [b"1", b"1.5", b'"a"', b"[1]", b"[]", b"{}", b"null", b'{"type":"text","text":"a"}']
CONTENT_TYPES = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x"]


def torn(data: bytes) -> st.SearchStrategy[bytes]:
    """Something done to a body, in UTF-8 or not any more."""
    places = st.integers(0, len(data))
    return st.one_of(
        places.map(lambda end: data[:end]),
        st.tuples(places, st.binary(max_size=4)).map(lambda p: data[: p[0]] + p[1] + data[p[0] :]),
        st.sampled_from(LITERALS).map(lambda text: data.replace(b"0.5", text.encode())),
        st.sampled_from(LITERALS).map(lambda text: text.encode()),
        st.integers(1, 60_000).map(lambda deep: data.replace(b"0.5", b"[" * deep + b"]" * deep)),
        st.integers(1, 60_000).map(lambda deep: b'{"a":' * deep),
        st.text(max_size=9).map(
            lambda text: data.replace("Hé".encode(), json.dumps(text).encode())
        ),
        st.tuples(st.sampled_from(MANY), st.integers(1, 100_000)).map(
            lambda many: re.sub(b'"H[^"]*"', b"[" + b",".join([many[0]] * many[1]) + b"]", data)
        ),
        st.just(data[:-1] + b"," + data[1:]),
        st.just(data.decode().encode("utf-16")),
        st.just(b"\xef\xbb\xbf" + data),
        st.just(data + b"\0"),
    )


# Made once: hypothesis keeps what a `flatmap` makes for every example.
asked = st.one_of(
    [
        st.tuples(st.just(path), torn(json.dumps(body, ensure_ascii=False).encode()))
        for path, body in GOOD.items()
    ]
)
content_types = st.sampled_from(["application/json"] * 5 + CONTENT_TYPES)


def ask_torn(texts: Texts, *, num_bodies: int, max_growth_bytes: int | None = None) -> None:
    with asyncio.Runner() as runner:
        made = house(texts, decode=1)
        h = runner.run(made.__aenter__())

        @settings(max_examples=num_bodies, deadline=None, suppress_health_check=list(HealthCheck))
        @given(asked, content_types)
        def check(asked: tuple[str, bytes], content_type: str) -> None:
            path, data = asked
            # The loop stands still between examples, and an idle connection may be closed then.
            headers = {"content-type": content_type, "connection": "close"}
            response = runner.run(h.http.post(path, content=data, headers=headers))
            check_answer(response, content_type)

        try:
            check()
            assert runner.run(h.router.door.drained(DEADLINE_S))
            if max_growth_bytes is not None:
                tracemalloc.start()
                check()
                gc.collect()
                assert tracemalloc.get_traced_memory()[0] < max_growth_bytes
        finally:
            tracemalloc.stop()
            runner.run(made.__aexit__(None, None, None))


def check_answer(response: httpx.Response, content_type: str) -> None:
    assert response.headers["x-request-id"]
    if response.status_code == 200:
        assert content_type == "application/json"
        return
    error = response.json()["error"]
    assert error["type"] == "invalid_request_error" and error["code"] and error["message"]
    expected = (415,) if content_type in CONTENT_TYPES else (400, 404)
    assert response.status_code in expected, response.text


def test_a_torn_body_is_refused(texts: Texts) -> None:
    ask_torn(texts, num_bodies=200)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_five_thousand_torn_bodies_leave_nothing_behind(texts: Texts) -> None:
    """Twice, the second time with the memory counted that is still held at the end."""
    ask_torn(texts, num_bodies=5_000, max_growth_bytes=30_000_000)


async def half_a_body(h: House, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which more was announced than is sent."""
    data = json.dumps(GOOD[path]).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", h.ports.http)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data[: len(data) // 2])
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("path", GOOD)
def test_a_body_that_does_not_end_is_given_up(
    texts: Texts, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_reader, "BODY_TIMEOUT_S", 0.2)

    async def test(h: House) -> None:
        reader, writer = await half_a_body(h, path)
        async with asyncio.timeout(DEADLINE_S):
            answer = await reader.readuntil(b"}}")
        assert answer.startswith(b"HTTP/1.1 408 ") and b'"deadline_exceeded"' in answer
        writer.close()
        await writer.wait_closed()
        assert (await h.http.get("/health")).status_code == 200

    in_house(texts, test)


def test_a_client_that_breaks_off_its_body_leaves_nothing(texts: Texts) -> None:
    async def test(h: House) -> None:
        for path in GOOD:
            _, writer = await half_a_body(h, path)
            writer.close()
            await writer.wait_closed()
        answer = await h.http.post("/v1/completions", json=GOOD["/v1/completions"])
        assert answer.status_code == 200
        assert await h.router.door.drained(DEADLINE_S)
        assert len(h.d.attempts) == 1

    in_house(texts, test)


def in_house(texts: Texts, test: Callable[[House], Any]) -> None:
    async def run() -> None:
        async with house(texts) as h:
            await test(h)

    asyncio.run(run())
