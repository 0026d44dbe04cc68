"""/v1/files and /v1/batches with OpenAI's own client, through a whole router."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import openai
import pytest
from fakes_batches import FINAL, LOOK_EVERY_S, begin, ended, jsonl, line, results
from fakes_house import MODEL, House, Texts, house
from fakes_pull import DEADLINE_S
from fakes_tenants import client, file_settings, keyed_house, make_key, open_store, put_keys

from core.errors import DeadlineError
from router.batch import upload
from state.file_batches import FileBatches
from state.tenants import UsageRow


def in_house(texts: Texts, test: Callable[[House], Awaitable[None]], **more: Any) -> None:
    async def run() -> None:
        async with house(texts, **more) as h:
            await test(h)

    asyncio.run(run())


def test_a_file_is_kept_listed_read_and_deleted(texts: Texts) -> None:
    async def test(h: House) -> None:
        files, data = h.openai.files, jsonl([line("a")])
        made = [await files.create(file=(f"{n}.jsonl", data), purpose="batch") for n in range(3)]
        assert made[0].bytes == len(data) and made[0].filename == "0.jsonl"
        assert made[0].expires_at == made[0].created_at + 30 * 24 * 3600
        assert (await files.retrieve(made[0].id)) == made[0]
        assert (await files.content(made[0].id)).read() == data
        page = await files.list(limit=2)
        assert [file.id for file in page.data] == [made[2].id, made[1].id] and page.has_more
        assert [file.id async for file in files.list(limit=1, order="asc")] == [m.id for m in made]
        assert (await files.delete(made[0].id)).deleted
        with pytest.raises(openai.NotFoundError, match="there is no file"):
            await files.content(made[0].id)

    in_house(texts, test)


def test_a_file_may_say_how_long_it_is_kept(texts: Texts) -> None:
    async def test(h: House) -> None:
        made = await h.openai.files.create(
            file=b"x", purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
        )
        assert made.expires_at == made.created_at + 3600
        with pytest.raises(openai.BadRequestError, match=r"expires_after.seconds"):
            await h.openai.files.create(
                file=b"x", purpose="batch", expires_after={"anchor": "created_at", "seconds": 1}
            )

    in_house(texts, test)


@pytest.mark.parametrize(
    ("endpoint", "fields"),
    [
        ("/v1/completions", {}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/v1/responses", {"input": "hi", "max_output_tokens": 3}),
    ],
)
def test_every_endpoint_answers_as_it_does_without_a_batch(
    texts: Texts, endpoint: str, fields: dict[str, Any]
) -> None:
    async def test(h: House) -> None:
        sent = [line(f"n-{n}", endpoint, **fields) for n in range(5)]
        if fields:
            for each in sent:
                each["body"].pop("prompt")
        if endpoint == "/v1/responses":
            for each in sent:
                del each["body"]["max_tokens"], each["body"]["seed"]
                each["body"]["temperature"] = 0
        batch = await begin(h.openai, jsonl(sent), endpoint, metadata={"of": "tests"})
        assert batch.status == "validating" and batch.metadata == {"of": "tests"}
        batch = await ended(h.openai, batch.id)
        assert batch.status == "completed" and batch.error_file_id is None
        assert batch.request_counts is not None and batch.request_counts.completed == 5
        assert batch.usage is not None and batch.usage.output_tokens == 15
        answers = await results(h.openai, batch.output_file_id)
        assert [answer["custom_id"] for answer in answers] == [f"n-{n}" for n in range(5)]
        direct = (await h.http.post(endpoint, json=sent[0]["body"])).json()
        for answer in answers:
            assert answer["error"] is None and answer["response"]["status_code"] == 200
            same = answer["response"]["body"].keys() ^ direct.keys()
            assert not same

    in_house(texts, test)


def test_what_is_wrong_with_one_request_is_its_own_error(texts: Texts) -> None:
    async def test(h: House) -> None:
        lines = [line("good"), line("bad", temperature=9), line("worse", nonsense=1)]
        batch = await ended(h.openai, (await begin(h.openai, jsonl(lines))).id)
        assert batch.status == "completed" and batch.request_counts is not None
        assert (batch.request_counts.completed, batch.request_counts.failed) == (1, 2)
        (good,) = await results(h.openai, batch.output_file_id)
        bad, worse = await results(h.openai, batch.error_file_id)
        assert good["custom_id"] == "good"
        assert bad["response"]["status_code"] == worse["response"]["status_code"] == 400
        assert bad["response"]["body"]["error"]["param"] == "temperature"
        assert worse["response"]["body"]["error"]["code"] == "unknown_parameter"

    in_house(texts, test)


def test_batches_are_listed_page_by_page(texts: Texts) -> None:
    async def test(h: House) -> None:
        made = [(await begin(h.openai, jsonl([line("a")]))).id for _ in range(5)]
        assert [b.id async for b in h.openai.batches.list(limit=2)] == made[::-1]
        page = await h.openai.batches.list(limit=2, after=made[3])
        assert [b.id for b in page.data] == [made[2], made[1]] and page.has_more

    in_house(texts, test)


def test_five_hundred_lines_under_online_load_are_answered_once_each(texts: Texts) -> None:
    async def test(h: House) -> None:
        sent = [line(f"n-{n}") for n in range(500)]
        batch = await begin(h.openai, jsonl(sent))
        num_online = 0

        async def online() -> None:
            nonlocal num_online
            while (await h.openai.batches.retrieve(batch.id)).status not in FINAL:
                answer = await h.openai.completions.create(
                    model=MODEL, prompt=[4, 5], max_tokens=3, seed=1
                )
                assert answer.usage is not None and answer.usage.completion_tokens == 3
                num_online += 1

        await asyncio.gather(*(online() for _ in range(4)))
        batch = await h.openai.batches.retrieve(batch.id)
        assert batch.status == "completed" and num_online > 4
        answers = await results(h.openai, batch.output_file_id)
        assert [a["custom_id"] for a in answers] == [each["custom_id"] for each in sent]
        assert batch.error_file_id is None
        assert len(h.d.attempts) == 500 + num_online, "nothing ran twice"

    in_house(texts, test)


def test_a_batch_can_be_cancelled_midway(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.d.gate.clear()
        batch = await begin(h.openai, jsonl([line(f"n-{n}") for n in range(50)]))
        await h.d.until(lambda d: bool(d.attempts))
        with pytest.raises(openai.ConflictError, match="has not ended"):
            await h.openai.files.delete(batch.input_file_id)
        cancelling = await h.openai.batches.cancel(batch.id)
        assert cancelling.status in ("cancelling", "cancelled")
        batch = await ended(h.openai, batch.id)
        assert batch.status == "cancelled" and batch.cancelled_at is not None
        assert await results(h.openai, batch.output_file_id) == []
        errors = await results(h.openai, batch.error_file_id)
        assert [e["custom_id"] for e in errors] == [f"n-{n}" for n in range(50)]
        assert {e["error"]["code"] for e in errors} == {"batch_cancelled"}
        assert h.router.door.admission.num_running == 0
        assert (await h.openai.batches.cancel(batch.id)).status == "cancelled"
        await h.openai.files.delete(batch.input_file_id)

    in_house(texts, test)


def test_a_batch_ends_with_its_window(texts: Texts) -> None:
    now = time.time()

    async def test(h: House) -> None:
        nonlocal now
        h.d.gate.clear()
        batch = await begin(h.openai, jsonl([line("a"), line("b")]))
        assert batch.expires_at == batch.created_at + 24 * 3600
        await h.d.until(lambda d: bool(d.attempts))
        now += 24 * 3600 + 1
        batch = await ended(h.openai, batch.id)
        assert batch.status == "expired" and batch.expired_at is not None
        errors = await results(h.openai, batch.error_file_id)
        assert [e["error"]["code"] for e in errors] == ["batch_expired"] * 2
        now += 30 * 24 * 3600
        assert [file async for file in h.openai.files.list()] == []

    in_house(texts, test, wall=lambda: now)


def test_a_file_that_is_unfit_fails_the_batch_and_says_where(texts: Texts) -> None:
    async def test(h: House) -> None:
        data = jsonl([line("a"), line("a"), line("b") | {"method": "GET"}])
        batch = await ended(h.openai, (await begin(h.openai, data)).id)
        assert batch.status == "failed" and batch.errors is not None
        found = [(e.code, e.line, e.param) for e in batch.errors.data or []]
        assert found == [
            ("duplicate_custom_id", 2, "custom_id"),
            ("invalid_method", 3, "method"),
        ]
        assert h.d.attempts == [] and batch.output_file_id is None
        with pytest.raises(openai.ConflictError):
            await h.openai.batches.cancel(batch.id)

    in_house(texts, test)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"metadata": {str(n): "" for n in range(17)}}, "metadata"),
        ({"output_expires_after": {"anchor": "now", "seconds": 3600}}, "output_expires_after"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_what_a_batch_can_not_be_is_named(texts: Texts, fields: dict[str, Any], param: str) -> None:
    async def test(h: House) -> None:
        file = await h.openai.files.create(file=b"x", purpose="batch")
        body = {
            "input_file_id": file.id,
            "endpoint": "/v1/completions",
            "completion_window": "24h",
        }
        answer = await h.http.post("/v1/batches", json=body | fields)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"].startswith(param)
        missing = await h.http.post("/v1/batches", json=body | {"input_file_id": "../../x"})
        assert missing.status_code == 404

    in_house(texts, test)


FORM = {"content-type": "multipart/form-data; boundary=b"}
FILE = b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n%b\r\n'
PURPOSE = b'--b\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
END = b"--b--\r\n"


@pytest.mark.parametrize(
    ("headers", "data", "status"),
    [
        (FORM, FILE % b"x" + PURPOSE + END, 200),
        (FORM, PURPOSE + FILE % b"x" + END, 200),
        (FORM, FILE % b"x" + PURPOSE, 400),
        (FORM, FILE % b"x" + END, 400),
        (FORM, PURPOSE + END, 400),
        (FORM, PURPOSE + FILE % b"x" + FILE % b"x" + END, 400),
        (FORM, PURPOSE + FILE % (b"x" * 2001) + END, 413),
        (FORM, PURPOSE + FILE % (b"x" * 300_000) + END, 413),
        (FORM, PURPOSE.replace(b"batch", b"vision") + FILE % b"x" + END, 400),
        (FORM, PURPOSE.replace(b"purpose", b"\xff") + END, 400),
        (FORM, PURPOSE.replace(b"batch", b"x" * 5000) + END, 400),
        (FORM, b"--b\r\nx: " + b"y" * 9000 + b"\r\n\r\n" + END, 400),
        (FORM, b"nonsense", 400),
        (FORM, b"", 400),
        ({"content-type": "multipart/form-data"}, END, 415),
        ({"content-type": "application/json"}, b"{}", 415),
    ],
)
def test_an_upload_is_taken_whole_or_refused(
    texts: Texts, headers: dict[str, str], data: bytes, status: int, tmp_path: Path
) -> None:
    async def test(h: House) -> None:
        answer = await h.http.post("/v1/files", headers=headers, content=data)
        assert answer.status_code == status, answer.text
        assert list(tmp_path.glob("incoming/*")) == []
        assert len(list(tmp_path.glob("files/*"))) == (status == 200)

    settings: dict[str, object] = {"dir": str(tmp_path), "max_file_bytes": 2000}
    in_house(texts, test, overrides={"batch": settings})


def test_an_upload_that_trickles_is_given_up(tmp_path: Path) -> None:
    """It would keep one of few places for as long as its client likes."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        real, passed = loop.time, 0.0
        loop.time = lambda: real() + passed  # type: ignore[method-assign]

        async def trickle() -> AsyncIterator[bytes]:
            nonlocal passed
            yield FILE.partition(b"%b")[0]
            while True:  # never silent for as long as that is allowed
                passed += upload.PIECE_TIMEOUT_S / 2
                yield b"x"

        kind = FORM["content-type"]
        await upload.read_upload(trickle(), kind, tmp_path / "file", max_bytes=10**9)

    with pytest.raises(DeadlineError, match="slower"):
        asyncio.run(run())


def test_a_key_sees_its_own_files_and_batches_only(texts: Texts, tmp_path: Path) -> None:
    (alice, of_alice), (bob, of_bob) = make_key("alice"), make_key("bob")
    settings = file_settings(tmp_path / "tenants.db", refresh_s=1e-6)

    async def booked() -> list[UsageRow]:
        async with open_store(settings) as store:
            return list(await store.usage(time.strftime("%Y-%m-%d", time.gmtime())))

    async def run() -> None:
        async with (
            keyed_house(texts, settings, of_alice, of_bob) as h,
            client(h, alice) as a,
            client(h, bob) as b,
        ):
            batch = await ended(a, (await begin(a, jsonl([line("x")]))).id)
            assert batch.status == "completed" and batch.output_file_id is not None
            assert (await b.files.list()).data == [] and (await b.batches.list()).data == []
            for asked in (
                b.files.content(batch.output_file_id),
                b.files.delete(batch.input_file_id),
                b.batches.retrieve(batch.id),
                b.batches.cancel(batch.id),
                b.batches.create(
                    input_file_id=batch.input_file_id,
                    endpoint="/v1/completions",
                    completion_window="24h",
                ),
            ):
                with pytest.raises(openai.NotFoundError):
                    await asked

    asyncio.run(run())
    (row,) = asyncio.run(booked())
    assert row.key_id == of_alice.key_id and row.batch and row.output_tokens == 3


def test_a_router_goes_on_with_what_it_left_when_it_stopped(texts: Texts, tmp_path: Path) -> None:
    batches: dict[str, object] = {"dir": str(tmp_path), "max_concurrency": 4}
    overrides: dict[str, dict[str, object]] = {"batch": batches}
    sent = [line(f"n-{n}") for n in range(100)]

    async def run() -> None:
        async with house(texts, overrides=overrides) as h:
            batch = await begin(h.openai, jsonl(sent))
            await h.d.until(lambda d: len(d.attempts) > 10)  # so some have been answered
        async with house(texts, overrides=overrides) as h:
            batch = await ended(h.openai, batch.id)
            assert batch.status == "completed"
            answers = await results(h.openai, batch.output_file_id)
            assert [a["custom_id"] for a in answers] == [each["custom_id"] for each in sent]
            assert len(h.d.attempts) < 100, "what was answered is not asked again"

    asyncio.run(run())


def test_batches_can_be_switched_off(texts: Texts) -> None:
    async def test(h: House) -> None:
        for path in ("/v1/files", "/v1/batches"):
            answer = await h.http.get(path)
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "unsupported_endpoint"

    in_house(texts, test, overrides={"batch": {"enabled": False}})


def test_a_batch_waits_for_a_router_of_its_model(texts: Texts, tmp_path: Path) -> None:
    """Routers of several models may share a directory."""
    shared: dict[str, dict[str, object]] = {"batch": {"dir": str(tmp_path)}}
    elsewhere: dict[str, dict[str, object]] = {"model": {"served_model_name": "another"}}

    async def run() -> None:
        async with house(texts, overrides=shared) as h:
            h.d.gate.clear()
            batch = await begin(h.openai, jsonl([line("a")]))
            await h.d.until(lambda d: bool(d.attempts))
        async with house(texts, overrides=shared | elsewhere) as h:
            own = await begin(h.openai, jsonl([line("b", model="another")]))
            assert (await ended(h.openai, own.id)).status == "completed"
            assert (await h.openai.batches.retrieve(batch.id)).status == "in_progress"
        async with house(texts, overrides=shared) as h:
            assert (await ended(h.openai, batch.id)).status == "completed"

    asyncio.run(run())


def test_while_the_store_is_away_clients_are_told_to_come_back(
    texts: Texts, tmp_path: Path
) -> None:
    (tmp_path / "batches.db").mkdir()

    async def test(h: House) -> None:
        answer = await h.http.get("/v1/batches")
        assert answer.status_code == 503 and answer.headers["retry-after"]
        assert answer.json()["error"]["code"] == "store"
        assert str(tmp_path) not in answer.text

    in_house(texts, test, overrides={"batch": {"dir": str(tmp_path)}})


def test_a_key_that_is_revoked_gets_no_more_answers(texts: Texts, tmp_path: Path) -> None:
    key, record = make_key()
    settings = file_settings(tmp_path / "tenants.db", refresh_s=1e-6)
    settings["batch"] = {"dir": str(tmp_path / "batch"), "max_concurrency": 1}

    async def run() -> None:
        async with keyed_house(texts, settings, record) as h, client(h, key) as asker:
            h.d.gate.clear()
            batch = await begin(asker, jsonl([line("a"), line("b")]))
            await h.d.until(lambda d: bool(d.attempts))
            await put_keys(settings, [dataclasses.replace(record, revoked_at=1.0)])
            h.d.gate.set()
            store = FileBatches(tmp_path / "batch" / "batches.db", 10.0)
            try:
                async with asyncio.timeout(DEADLINE_S):
                    while not (found := await store.get_batch(batch.id)) or not found.is_final:
                        await asyncio.sleep(LOOK_EVERY_S)
            finally:
                await store.close()
            assert (found.num_completed, found.num_failed) == (1, 1)
            assert len(h.d.attempts) == 1

    asyncio.run(run())
