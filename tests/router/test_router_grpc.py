"""The public gRPC API: the same answers and the same faults as over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest
from fakes_house import MODEL, House, Texts, house
from fakes_language import FakeLanguage
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from protos import inference_pb2 as pb
from protos import inference_pb2_grpc

PROMPT = list(range(100, 140))


def in_house(
    texts: Texts, test: Callable[[House, grpc.aio.Channel], Awaitable[None]], **settings: Any
) -> None:
    async def run() -> None:
        async with (
            house(texts, **settings) as h,
            grpc.aio.insecure_channel(f"127.0.0.1:{h.ports.grpc}") as channel,
        ):
            await test(h, channel)

    asyncio.run(run())


def request(**fields: Any) -> pb.CompleteRequest:
    given: dict[str, Any] = {
        "model": MODEL,
        "token_ids": pb.TokenIds(ids=PROMPT),
        "max_tokens": 8,
        "sampling": pb.Sampling(seed=1),
    }
    return pb.CompleteRequest(**(given | fields))


async def complete(channel: grpc.aio.Channel, message: pb.CompleteRequest) -> list[pb.Delta]:
    """All deltas; checks that exactly one usage follows them."""
    call = inference_pb2_grpc.InferenceStub(channel).Complete(message)
    events = [event async for event in call]
    assert [event.WhichOneof("kind") for event in events[-1:]] == ["usage"]
    assert all(event.HasField("delta") for event in events[:-1])
    return [event.delta for event in events[:-1]]


def test_deltas_are_the_same_tokens_as_over_http(texts: Texts) -> None:
    async def test(h: House, channel: grpc.aio.Channel) -> None:
        deltas = await complete(channel, request(n=2))
        for choice in (0, 1):
            mine = [d for d in deltas if d.choice == choice]
            tokens = FakeLanguage().answer(PROMPT, 1, choice, 8)
            assert [t for d in mine for t in d.token_ids] == tokens
            assert "".join(d.text for d in mine) == texts.tokenizer.decode(tokens)
            assert [d.finish_reason for d in mine if d.finish_reason] == ["length"]

    in_house(texts, test)


def test_usage_comes_last_with_seed_and_timings(texts: Texts) -> None:
    async def test(h: House, channel: grpc.aio.Channel) -> None:
        call = inference_pb2_grpc.InferenceStub(channel).Complete(request(include_timings=True))
        *_, last = [event async for event in call]
        usage = last.usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.seed) == (len(PROMPT), 8, 1)
        assert usage.timings.ttft_s > 0 and usage.timings.decode_worker == "decode-0"

    in_house(texts, test)


def test_an_absent_temperature_is_the_default_and_zero_is_zero(texts: Texts) -> None:
    async def test(h: House, channel: grpc.aio.Channel) -> None:
        await complete(channel, request())
        await complete(channel, request(sampling=pb.Sampling(temperature=0.0)))
        assert [a.sampling.temperature for a in h.p.attempts] == [1.0, 0.0]
        assert h.p.attempts[0].sampling.top_p == 1.0

    in_house(texts, test)


def test_a_chat_is_rendered_like_over_http(texts: Texts) -> None:
    async def test(h: House, channel: grpc.aio.Channel) -> None:
        chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="Hello")])
        message = pb.CompleteRequest(model=MODEL, chat=chat, max_tokens=2)
        await complete(channel, message)
        body = {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": "Hello"}]}
        assert (await h.http.post("/v1/chat/completions", json=body)).status_code == 200
        assert h.p.attempts[0].token_ids == h.p.attempts[1].token_ids

    in_house(texts, test)


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"model": "x"}, grpc.StatusCode.NOT_FOUND, "model_not_found", "model"),
        ({"model": "x" * 100_000}, grpc.StatusCode.NOT_FOUND, "model_not_found", "model"),
        (
            {"chat": pb.Chat(messages=[pb.ChatMessage(role="tool", content="x")])},
            grpc.StatusCode.INVALID_ARGUMENT,
            "invalid_request",
            "messages",
        ),
        ({"n": 0}, grpc.StatusCode.INVALID_ARGUMENT, "invalid_request", "n"),
        ({"token_ids": None}, grpc.StatusCode.INVALID_ARGUMENT, "invalid_request", "prompt"),
        (
            {"max_tokens": 10**6},
            grpc.StatusCode.INVALID_ARGUMENT,
            "context_length_exceeded",
            "prompt",
        ),
        (
            {"sampling": pb.Sampling(temperature=float("nan"))},
            grpc.StatusCode.INVALID_ARGUMENT,
            "invalid_request",
            "temperature",
        ),
    ],
)
def test_faults_are_status_codes(
    texts: Texts, fields: dict[str, Any], status: grpc.StatusCode, code: str, param: str
) -> None:
    async def test(h: House, channel: grpc.aio.Channel) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await complete(channel, request(**fields))
        assert caught.value.code() is status
        trailing = dict(caught.value.trailing_metadata())
        assert (trailing["tandem-code"], trailing["tandem-param"]) == (code, param)

    in_house(texts, test, ready=False)


def test_ending_the_call_cancels_both_legs(texts: Texts) -> None:
    async def test(h: House, channel: grpc.aio.Channel) -> None:
        h.p.gate.clear()
        call = inference_pb2_grpc.InferenceStub(channel).Complete(request())
        await h.d.until(lambda w: len(w.attempts) == 1)
        call.cancel()
        await h.p.until(lambda w: len(w.cancels) == 1)
        await h.d.until(lambda w: len(w.cancels) == 1)

    in_house(texts, test)


def test_the_call_s_deadline_is_the_request_s(texts: Texts) -> None:
    async def test(h: House, channel: grpc.aio.Channel) -> None:
        h.p.gate.clear()
        call = inference_pb2_grpc.InferenceStub(channel).Complete(request(), timeout=1.0)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        # On the wire a second and more is told in steps of 10 ms, rounded up
        assert 0 < h.p.attempts[0].deadline_s <= 1.01
        await h.p.until(lambda w: len(w.cancels) == 1)

    in_house(texts, test)


def test_models_health_and_reflection_answer(texts: Texts) -> None:
    async def test(h: House, channel: grpc.aio.Channel) -> None:
        models = await inference_pb2_grpc.InferenceStub(channel).ListModels(pb.ListModelsRequest())
        assert [m.id for m in models.models] == [MODEL]
        health = health_pb2_grpc.HealthStub(channel)
        answer = await health.Check(
            health_pb2.HealthCheckRequest(service="tandem.inference.v1.Inference")
        )
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        listing = reflection_pb2.ServerReflectionRequest(list_services="")
        async for reply in stub.ServerReflectionInfo(iter([listing])):
            names = {service.name for service in reply.list_services_response.service}
            assert "tandem.inference.v1.Inference" in names

    in_house(texts, test, ready=False)
