"""A router is killed in the middle of a batch, and another one goes on with it, over real Redis."""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest
from fakes_batches import begin, ended, jsonl, line, results
from fakes_house import MODEL, House, Texts, house
from fakes_process import Child, child, tandem

from core.config import Config
from router.batch.results import find_results
from router.batch.shelf import Shelf
from router.server import RouterServer
from state.file_batches import FileBatches
from state.redis_store import RedisStore

NUM_LINES = 500
NUM_BEFORE = 150
"""Lines that the first router asks at least."""
FIRST_PROMPT = 1000
"""Its first token; each line has its own."""
ONLINE = [4, 5]
DEADLINE_S = 240.0
TIMEOUT_S = 10.0


def settings(redis_url: str, directory: Path) -> dict[str, dict[str, object]]:
    """Of both routers."""
    return {
        "state": {
            "backend": "redis",
            "redis_url": redis_url,
            "namespace": uuid.uuid4().hex,
            "timeout_s": TIMEOUT_S,
        },
        "model": {"served_model_name": MODEL},
        "router": {"http_port": 0, "grpc_port": 0},
        "batch": {"dir": str(directory), "lease_s": 2.0},
    }


def router_process(given: dict[str, dict[str, object]]) -> list[str]:
    command = tandem("router")
    for section, values in given.items():
        for name, value in values.items():
            command += ["--set", f"{section}.{name}={value}"]
    return command


def client_of(url: str) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0, timeout=DEADLINE_S)


def prompts(h: House) -> Counter[tuple[int, ...]]:
    """How often the house was asked each."""
    return Counter(attempt.token_ids for attempt in h.d.attempts)


@contextlib.asynccontextmanager
async def online_load(h: House) -> AsyncIterator[list[int]]:
    """A client without pause for the length of the block; lengths of what it was answered."""
    lengths: list[int] = []
    ending = asyncio.Event()

    async def visit() -> None:
        while not ending.is_set():
            answer = await h.openai.completions.create(model=MODEL, prompt=ONLINE, max_tokens=3)
            lengths.append(answer.usage.completion_tokens if answer.usage else 0)

    async with asyncio.TaskGroup() as visits:
        visits.create_task(visit())
        try:
            yield lengths
        finally:
            ending.set()


@pytest.mark.timeout(600)
def test_what_a_killed_router_left_is_answered_by_another_once_each(
    texts: Texts, redis_url: str, tmp_path: Path
) -> None:
    """Under online load. A line whose answer was noted is never asked again; others once more."""
    given = settings(redis_url, tmp_path)
    sent = [line(f"n-{n}", prompt=[FIRST_PROMPT + n, 9]) for n in range(NUM_LINES)]

    async def run(first: Child) -> None:
        store = RedisStore(redis_url, str(given["state"]["namespace"]), TIMEOUT_S)
        ready = await asyncio.to_thread(first.wait_for, "router ready:")
        url = re.search(r"http://\S+/v1", ready)
        assert url is not None
        # This house has the workers; its own router runs no batches.
        async with (
            house(texts, store=store, overrides={"batch": {"enabled": False}}) as h,
            online_load(h) as online,
        ):
            async with client_of(url[0]) as client:
                batch = await begin(client, jsonl(sent))
                await h.d.until(lambda d: len(prompts(h)) > NUM_BEFORE)
                h.d.gate.clear()
                first.process.kill()
                await asyncio.to_thread(first.end)
            before, num_online = prompts(h), len(online)
            assert len(before) < NUM_LINES, "it was killed in the middle"
            noted = set(find_results(Shelf(tmp_path).parts(batch.id)))
            assert 0 < len(noted) < len(before), "some were under way"
            h.d.gate.set()
            second = RouterServer(
                Config.model_validate(given), texts.card, texts.tokenizer, texts.template, store
            )
            try:
                ports = await second.start()
                async with client_of(f"http://127.0.0.1:{ports.http}/v1") as client:
                    batch = await ended(client, batch.id, DEADLINE_S)
                    assert batch.status == "completed" and batch.error_file_id is None
                    answers = await results(client, batch.output_file_id)
                    files = [file.id async for file in client.files.list()]
            finally:
                await second.stop(1.0)
            assert [a["custom_id"] for a in answers] == [each["custom_id"] for each in sent]
            assert sorted(files) == sorted([batch.input_file_id, batch.output_file_id or ""])
            asked = prompts(h)
            for number in range(1, NUM_LINES + 1):
                count = asked[FIRST_PROMPT + number - 1, 9]
                most = 1 if number in noted else 2
                assert 1 <= count <= most, (number, number in noted)
            assert len(online) > num_online > 0 and set(online) == {3}
        await store.close()

    with child(router_process(given)) as first:
        asyncio.run(run(first))


def test_a_holder_that_lost_its_lease_adds_nothing(texts: Texts, tmp_path: Path) -> None:
    """It is stopped by nobody: its worker stands still while another one takes the batch over."""
    directory = {"dir": str(tmp_path), "lease_s": 3600.0}
    sent = [line(f"n-{n}") for n in range(20)]

    async def run() -> None:
        async with (
            house(texts, overrides={"batch": directory}) as slow,
            house(texts, overrides={"batch": directory | {"enabled": False}}) as other,
        ):
            slow.d.gate.clear()
            batch = await begin(slow.openai, jsonl(sent))
            await slow.d.until(lambda d: bool(d.attempts))
            store = FileBatches(Shelf(tmp_path).records, TIMEOUT_S)
            await store.release(batch.id, 1)
            taker = RouterServer(
                Config.model_validate(
                    {
                        "model": {"served_model_name": MODEL},
                        "router": {"http_port": 0, "grpc_port": 0},
                        "batch": directory,
                    }
                ),
                texts.card,
                texts.tokenizer,
                texts.template,
                other.store,
            )
            try:
                ports = await taker.start()
                async with client_of(f"http://127.0.0.1:{ports.http}/v1") as client:
                    done = await ended(client, batch.id, DEADLINE_S)
                    slow.d.gate.set()
                    answers = await results(client, done.output_file_id)
            finally:
                await taker.stop(1.0)
                await store.close()
            assert [a["custom_id"] for a in answers] == [each["custom_id"] for each in sent]
            again = await slow.openai.batches.retrieve(batch.id)
            assert again == done, "the first holder wrote nothing over it"

    asyncio.run(run())
