"""/v1/files and /v1/batches with OpenAI's own client, through a whole router."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest
from fakes_batches import begin, ended, jsonl, line, results
from fakes_house import House, Texts, house


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
