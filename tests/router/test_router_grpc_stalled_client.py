"""A gRPC client whose connection lives and who takes nothing holds no place for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import grpc.aio
import pytest
from fakes_house import MODEL, House, Texts, house
from fakes_pull import DEADLINE_S

from protos import inference_pb2 as pb
from protos import inference_pb2_grpc
from router.rpc import service

# More than flow control lets through to who doesn't read: 1,600 tokens with 20 others each.
LONG = pb.CompleteRequest(
    model=MODEL,
    prompt="Hello",
    n=16,
    max_tokens=100,
    sampling=pb.Sampling(logprobs=20, ignore_eos=True, seed=1),
)

OPTIONS = (("grpc.http2.bdp_probe", 0),)
"""No larger window for who might read fast."""


def test_the_work_behind_an_answer_that_nobody_takes_is_ended(
    texts: Texts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "SEND_TIMEOUT_S", 0.2)

    async def test(h: House) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{h.ports.grpc}", OPTIONS) as channel:
            call = inference_pb2_grpc.InferenceStub(channel).Complete(LONG)
            await call.initial_metadata()
            assert await h.router.door.drained(DEADLINE_S)
            await h.d.until(lambda w: not w.num_open)
            (record,) = h.router.observer.ring.newest()
            assert record.outcome == "cancelled", "and not finished, into some buffer"
            call.cancel()

    in_house(texts, test)


def test_a_client_that_reads_gets_all_of_it(texts: Texts) -> None:
    async def test(h: House) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{h.ports.grpc}", OPTIONS) as channel:
            events = [e async for e in inference_pb2_grpc.InferenceStub(channel).Complete(LONG)]
        assert sum(len(event.delta.token_ids) for event in events) == 16 * 100
        assert events[-1].usage.completion_tokens == 16 * 100

    in_house(texts, test)


def in_house(texts: Texts, test: Callable[[House], Awaitable[None]]) -> None:
    async def run() -> None:
        async with house(texts) as h:
            await test(h)

    asyncio.run(run())
