"""Who tokenises is a request of its key's, and all who do hold up nobody else."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from fakes_house import MODEL, House, Texts, house
from fakes_pull import DEADLINE_S
from fakes_tenants import (
    bearer,
    error_of,
    file_settings,
    in_house,
    keyed_house,
    make_key,
    usage,
)

from core.errors import OverloadedError
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc
from router.bounded_threads import MAX_PENDING, BoundedThreads
from text.gguf_tokenizer import build_gguf_tokenizer
from text.tokenizer import Tokenizer

LONG = "a word and " * 200
HELD = f"held {LONG}"


class GatedTokenizer(Tokenizer):
    """Texts that begin with "held" wait until `gate` is set."""

    gate: threading.Event

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        if text.startswith("held"):
            assert self.gate.wait(DEADLINE_S)
        return super().encode(text, add_special_tokens)


def gated(texts: Texts) -> tuple[Texts, threading.Event]:
    tokenizer = GatedTokenizer(build_gguf_tokenizer(texts.card.source.path), texts.card)
    tokenizer.gate = threading.Event()
    return dataclasses.replace(texts, tokenizer=tokenizer), tokenizer.gate


@pytest.fixture
def settings(tmp_path: Path) -> dict[str, Any]:
    return file_settings(tmp_path / "tenants.db", refresh_s=1e-6)


@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_tokenising_counts_to_the_requests_a_minute_of_its_key(
    texts: Texts, settings: dict[str, Any], prefix: str
) -> None:
    key, record = make_key(requests_per_minute=2, tokens_per_minute=1)
    other_key, other = make_key()
    text, ids = {"prompt": LONG}, {"tokens": [100] * 500}

    async def test(h: House) -> None:
        async def post(path: str, fields: dict[str, Any], key: str = key) -> Any:
            return await h.http.post(f"{prefix}{path}", json=fields, headers=bearer(key))

        wrong = await post("/detokenize", {"tokens": [-1]})
        assert wrong.status_code == 400, "and costs nothing"
        first = await post("/tokenize", text)
        assert first.status_code == 200
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert (await post("/detokenize", ids)).status_code == 200
        for path, fields in (("/tokenize", text), ("/detokenize", ids)):
            refused = await post(path, fields)
            assert refused.status_code == 429
            assert 1 <= int(refused.headers["retry-after"]) <= 31
            assert refused.headers["x-ratelimit-remaining-requests"] == "0"
            error = error_of(refused)
            assert (error["type"], error["code"]) == ("rate_limit_error", "rate_limit_exceeded")
            assert "2 requests a minute" in error["message"]
            assert (await post(path, fields, other_key)).status_code == 200
        assert h.router.door.admission.num_running == 0

    in_house(texts, settings, [record, other], test)
    [row] = [row for row in asyncio.run(usage(settings)) if row.key_id == record.key_id]
    assert (row.requests, row.prompt_tokens, row.output_tokens) == (2, 0, 0)


def test_over_grpc_it_counts_too(texts: Texts, settings: dict[str, Any]) -> None:
    key, record = make_key(requests_per_minute=2)
    metadata = (("authorization", f"Bearer {key}"),)

    async def run() -> None:
        async with (
            keyed_house(texts, settings, record) as h,
            grpc.aio.insecure_channel(f"127.0.0.1:{h.ports.grpc}") as channel,
        ):
            stub: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(channel)
            reply = await stub.Tokenize(pb.TokenizeRequest(prompt=LONG), metadata=metadata)
            text = await stub.Detokenize(pb.DetokenizeRequest(ids=reply.ids), metadata=metadata)
            assert text.text == LONG
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Tokenize(pb.TokenizeRequest(prompt=LONG), metadata=metadata)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED

    asyncio.run(run())


def test_a_key_that_may_not_ask_the_model_may_not_use_its_tokenizer(
    texts: Texts, settings: dict[str, Any]
) -> None:
    key, record = make_key()
    record = dataclasses.replace(record, models=("another",))

    async def test(h: House) -> None:
        for fields in ({"prompt": "x"}, {"prompt": "x", "model": MODEL}):
            refused = await h.http.post("/tokenize", json=fields, headers=bearer(key))
            assert refused.status_code == 403

    in_house(texts, settings, [record], test)


def test_a_key_tokenises_no_more_at_once_than_it_may_run(
    texts: Texts, settings: dict[str, Any]
) -> None:
    key, record = make_key(max_concurrency=1)
    slow, gate = gated(texts)

    async def test(h: House) -> None:
        async def post(text: str) -> Any:
            return await h.http.post("/tokenize", json={"prompt": text}, headers=bearer(key))

        both = [asyncio.create_task(post(HELD)) for _ in range(2)]
        done, [held] = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        [refused] = [each.result() for each in done]
        assert refused.status_code == 429 and refused.headers["retry-after"] == "1"
        gate.set()
        assert (await held).status_code == 200
        assert (await post("short")).status_code == 200

    in_house(slow, settings, [record], test)


def test_too_many_at_once_are_told_to_come_back_and_hold_up_no_prompt(texts: Texts) -> None:
    slow, gate = gated(texts)
    too_many = 4

    async def run() -> None:
        async with house(slow, overrides={"router": {"tokenizer_threads": 2}}) as h:
            waiting = {
                asyncio.create_task(h.http.post("/tokenize", json={"prompt": HELD}))
                for _ in range(MAX_PENDING + too_many)
            }
            refused: set[asyncio.Task[Any]] = set()
            while len(refused) < too_many:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                refused |= done
            for each in refused:
                answer = each.result()
                assert answer.status_code == 429 and answer.headers["retry-after"] == "1"
                error = error_of(answer)
                assert error["type"] == "rate_limit_error"
                assert error["message"] == "16 texts wait to be tokenised or detokenised"

            request = {"model": MODEL, "prompt": LONG, "max_tokens": 1}
            assert (await h.http.post("/v1/completions", json=request)).status_code == 200
            short = await h.http.post("/tokenize", json={"prompt": "short"})
            assert short.status_code == 200, "it needs no thread"

            gate.set()
            answers = await asyncio.gather(*waiting)
            assert [answer.status_code for answer in answers] == [200] * MAX_PENDING
            assert h.router.door.admission.num_running == 0

    asyncio.run(run())


def test_who_is_cancelled_waits_no_more() -> None:
    gate = threading.Event()

    async def run() -> None:
        threads = BoundedThreads(1, name="test")
        held = [asyncio.create_task(threads.run(gate.wait)) for _ in range(MAX_PENDING)]
        await asyncio.sleep(0)  # each has begun to wait
        with pytest.raises(OverloadedError):
            await threads.run(gate.wait)
        held[-1].cancel()
        await asyncio.wait({held[-1]})
        another = asyncio.create_task(threads.run(gate.is_set))
        await asyncio.sleep(0)
        gate.set()
        assert await another
        assert await asyncio.gather(*held[:-1]) == [True] * (MAX_PENDING - 1)
        threads.close()

    asyncio.run(run())
