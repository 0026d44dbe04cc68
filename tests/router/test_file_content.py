"""A file's bytes: whole, in a range, and while it is deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes_house import House, Texts, house
from starlette.datastructures import Headers
from starlette.types import Message

from router.http.file_reply import CHUNK_BYTES, file_reply

DATA = bytes(range(256)) * (CHUNK_BYTES // 64)
SIZE = len(DATA)


def in_house(
    texts: Texts,
    test: Callable[[House], Awaitable[None]],
    overrides: dict[str, dict[str, object]] | None = None,
) -> None:
    async def run() -> None:
        async with house(texts, ready=False, overrides=overrides or {}) as h:
            await test(h)

    asyncio.run(run())


async def kept(h: House, data: bytes = DATA) -> str:
    return (await h.openai.files.create(file=("f", data), purpose="batch")).id


async def get(h: House, file_id: str, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await h.http.get(f"/v1/files/{file_id}/content", headers=named)


def test_a_range_is_answered_with_those_bytes(texts: Texts) -> None:
    async def test(h: House) -> None:
        file_id = await kept(h)
        whole = await get(h, file_id)
        assert (whole.status_code, whole.content) == (200, DATA)
        assert whole.headers["accept-ranges"] == "bytes"
        for asked, begin, end in (
            ("bytes=0-0", 0, 1),
            ("bytes=10-", 10, SIZE),
            ("Bytes = 5-99999999", 5, SIZE),
            ("bytes=-7", SIZE - 7, SIZE),
            (f"bytes=3-{CHUNK_BYTES + 2}", 3, CHUNK_BYTES + 3),
            (f"bytes=-{SIZE + 5}", 0, SIZE),
        ):
            part = await get(h, file_id, range=asked)
            assert (part.status_code, part.content) == (206, DATA[begin:end]), asked
            assert part.headers["content-range"] == f"bytes {begin}-{end - 1}/{SIZE}"
            assert part.headers["content-length"] == str(end - begin)
        several = await get(h, file_id, range="bytes=0-1,5-9")
        assert (several.status_code, several.content) == (200, DATA)

    in_house(texts, test)


def test_a_range_of_a_file_that_is_another_by_now_is_the_whole_one(texts: Texts) -> None:
    async def test(h: House) -> None:
        file_id = await kept(h)
        etag = (await get(h, file_id)).headers["etag"]
        assert (await get(h, file_id, range="bytes=1-2", if_range=etag)).content == DATA[1:3]
        other = await get(h, file_id, range="bytes=1-2", if_range='"another"')
        assert (other.status_code, other.content) == (200, DATA)

    in_house(texts, test)


@pytest.mark.parametrize(
    ("asked", "status", "code"),
    [
        ("bytes=9-3", 400, "invalid_request"),
        ("bytes=-", 400, "invalid_request"),
        ("bytes=", 400, "invalid_request"),
        ("bytes", 400, "invalid_request"),
        ("bytes=a-b", 400, "invalid_request"),
        ("bytes=0-1,x", 400, "invalid_request"),
        (f"bytes={'9' * 5000}-", 400, "invalid_request"),
        ("lines=0-1", 400, "invalid_request"),
        (f"bytes={SIZE}-", 416, "range_not_satisfiable"),
        ("bytes=-0", 416, "range_not_satisfiable"),
    ],
)
def test_a_wrong_range_is_told_in_openais_shape(
    texts: Texts, asked: str, status: int, code: str
) -> None:
    async def test(h: House) -> None:
        refused = await get(h, await kept(h), range=asked)
        assert refused.status_code == status
        error = refused.json()["error"]
        assert (error["type"], error["param"]) == ("invalid_request_error", "range")
        assert error["code"] == code
        told = refused.headers.get("content-range")
        assert told == (f"bytes */{SIZE}" if status == 416 else None)

    in_house(texts, test)


def test_a_file_without_bytes_is_answered_whole(texts: Texts) -> None:
    async def test(h: House) -> None:
        file_id = await kept(h, b"")
        whole = await get(h, file_id)
        assert (whole.status_code, whole.content) == (200, b"")
        assert (await get(h, file_id, range="bytes=0-")).status_code == 416

    in_house(texts, test)


def test_bytes_that_are_gone_while_the_record_is_there_are_a_404(
    texts: Texts, tmp_path: Path
) -> None:
    async def test(h: House) -> None:
        file_id = await kept(h)
        [path] = tmp_path.rglob(file_id)
        path.unlink()
        missing = await get(h, file_id)
        assert missing.status_code == 404
        assert missing.json()["error"]["code"] == "file_not_found"

    in_house(texts, test, {"batch": {"dir": str(tmp_path)}})


def test_a_download_that_has_begun_is_complete_though_the_file_is_deleted(texts: Texts) -> None:
    data = DATA * 64  # more than sockets hold

    async def test(h: House) -> None:
        file_id = await kept(h, data)
        url = f"/v1/files/{file_id}/content"
        async with h.http.stream("GET", url) as answer:
            pieces = answer.aiter_bytes()
            read = await anext(pieces)
            assert (await h.http.delete(f"/v1/files/{file_id}")).status_code == 200
            assert (await get(h, file_id)).status_code == 404
            async for piece in pieces:
                read += piece
        assert read == data

    in_house(texts, test)


def test_a_file_that_is_deleted_before_its_first_byte_is_sent_is_sent_whole(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("nobody ends this")

    async def run() -> None:
        reply = file_reply(path.open("rb"), '"f"', Headers())
        path.unlink()
        scope: dict[str, Any] = {"type": "http"}
        await reply(scope, receive, send)

    asyncio.run(run())
    assert sent[0]["status"] == 200
    assert b"".join(message["body"] for message in sent[1:]) == DATA
    assert not sent[-1]["more_body"]
