"""What gRPC offers beside generating: cancel, tokenise, errors in detail, health, keep-alive."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio
import pytest
from fakes_house import MODEL, House, Texts, house
from fakes_pull import DEADLINE_S
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from core.load import LoadReport
from core.request import AttemptFailed
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc
from protos.health import LIVENESS, READINESS
from router.rpc.server import SERVICE

PROMPT = list(range(100, 140))
Stub: TypeAlias = "inference_pb2_grpc.InferenceAsyncStub"


def in_house(texts: Texts, test: Callable[[House, Stub], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with (
            house(texts, **settings) as h,
            grpc.aio.insecure_channel(f"127.0.0.1:{h.ports.grpc}") as channel,
        ):
            await test(h, inference_pb2_grpc.InferenceStub(channel))

    asyncio.run(run())


def request(**fields: Any) -> pb.CompleteRequest:
    given: dict[str, Any] = {"model": MODEL, "token_ids": pb.TokenIds(ids=PROMPT), "max_tokens": 50}
    return pb.CompleteRequest(**(given | fields))


async def failure(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call:
            pass
    return caught.value


def details_of(error: grpc.aio.AioRpcError) -> dict[str, Any]:
    """The messages of google.rpc.Status by their short names."""
    trailing = dict(error.trailing_metadata())
    status = status_pb2.Status.FromString(trailing["grpc-status-details-bin"])
    assert (status.code, status.message) == (error.code().value[0], error.details())
    found = {}
    for packed in status.details:
        name = packed.type_url.rpartition(".")[2]
        found[name] = getattr(error_details_pb2, name)()
        assert packed.Unpack(found[name])
    return found


def test_an_error_names_its_reason_and_field_in_google_s_own_messages(texts: Texts) -> None:
    async def test(h: House, stub: Stub) -> None:
        error = await failure(stub.Complete(request(n=0)))
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
        details = details_of(error)
        assert (details["ErrorInfo"].reason, details["ErrorInfo"].domain) == (
            "INVALID_REQUEST",
            "tandem",
        )
        [violation] = details["BadRequest"].field_violations
        assert violation.field == "n" and "at least 1" in violation.description
        assert "RetryInfo" not in details

        h.p.failures += [AttemptFailed("", "worker_lost", "gone", True)] * 9
        error = await failure(stub.Complete(request()))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        details = details_of(error)
        assert details["ErrorInfo"].reason == "WORKER_LOST"
        assert details["RetryInfo"].retry_delay.seconds >= 1

        h.router.door.admission.draining = True
        error = await failure(stub.Complete(request()))
        assert details_of(error)["ErrorInfo"].reason == "DRAINING"
        assert dict(error.trailing_metadata())["tandem-code"] == "draining"

    in_house(texts, test)


@pytest.mark.parametrize("message", ["x" * 100_000, "\u4f60" * 50_000, "a\nb\x00"])
def test_an_error_of_any_text_arrives(texts: Texts, message: str) -> None:
    async def test(h: House, stub: Stub) -> None:
        h.p.failures.append(AttemptFailed("", "something", message, False))
        error = await failure(stub.Complete(request()))
        assert error.code() is grpc.StatusCode.INTERNAL
        assert dict(error.trailing_metadata())["tandem-code"] == "something"

    in_house(texts, test)


def test_a_call_has_an_id_before_its_first_message(texts: Texts) -> None:
    async def test(h: House, stub: Stub) -> None:
        h.p.gate.clear()
        mine = stub.Complete(request(), metadata=(("x-request-id", "mine"),))
        metadata = dict(await mine.initial_metadata())
        assert metadata["x-request-id"] == "mine"
        await h.p.until(lambda w: len(w.attempts) == 1)
        assert metadata["tandem-request-id"] == h.p.attempts[0].request_id
        other = dict(await stub.Complete(request()).initial_metadata())
        assert other["x-request-id"] == other["tandem-request-id"]
        listing = stub.ListModels(pb.ListModelsRequest(), metadata=(("x-request-id", "list"),))
        assert dict(await listing.initial_metadata())["x-request-id"] == "list"
        refused = stub.Complete(request(n=0), metadata=(("x-request-id", "bad"),))
        assert dict(await refused.initial_metadata())["x-request-id"] == "bad"

    in_house(texts, test)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_request_is_cancelled_by_its_id_or_its_client_s_name(texts: Texts, by_name: bool) -> None:
    async def test(h: House, stub: Stub) -> None:
        h.p.gate.clear()
        call = stub.Complete(request(), metadata=(("x-request-id", "mine"),))
        own_id = str(dict(await call.initial_metadata())["tandem-request-id"])
        await h.d.until(lambda w: len(w.attempts) == 1)
        name = "mine" if by_name else own_id
        reply = await stub.Cancel(pb.CancelRequest(request_id=name))
        assert reply.request_id == own_id
        error = await failure(call)
        assert error.code() is grpc.StatusCode.CANCELLED
        assert details_of(error)["ErrorInfo"].reason == "CANCELLED"
        await h.d.until(lambda w: len(w.cancels) == 1)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Cancel(pb.CancelRequest(request_id=name))
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    in_house(texts, test)


def test_a_request_of_one_protocol_can_be_cancelled_over_the_other(texts: Texts) -> None:
    async def test(h: House, stub: Stub) -> None:
        h.p.gate.clear()
        call = stub.Complete(request(), metadata=(("x-request-id", "mine"),))
        await h.p.until(lambda w: len(w.attempts) == 1)
        assert (await h.http.post("/v1/requests/mine/cancel")).status_code == 200
        assert (await failure(call)).code() is grpc.StatusCode.CANCELLED
        body = {"model": MODEL, "prompt": PROMPT}
        headers = {"x-request-id": "other"}
        asking = asyncio.create_task(h.http.post("/v1/completions", json=body, headers=headers))
        await h.p.until(lambda w: len(w.attempts) == 2)
        await stub.Cancel(pb.CancelRequest(request_id="other"))
        assert (await asking).status_code == 499

    in_house(texts, test)


def test_tokens_are_those_of_http(texts: Texts) -> None:
    async def test(h: House, stub: Stub) -> None:
        text = "Hello, wörld!"
        reply = await stub.Tokenize(pb.TokenizeRequest(prompt=text))
        answer = await h.http.post("/tokenize", json={"prompt": text, "return_token_strs": True})
        assert list(reply.ids) == answer.json()["tokens"]
        assert list(reply.strings) == answer.json()["token_strs"]
        back = await stub.Detokenize(pb.DetokenizeRequest(ids=reply.ids))
        assert back.text == text
        messages = [{"role": "user", "content": "Hi"}]
        variants: list[dict[str, Any]] = [{}, {"add_generation_prompt": False}]
        for options in variants:
            chat = pb.Chat(messages=[pb.ChatMessage(role="user", content="Hi")], **options)
            reply = await stub.Tokenize(pb.TokenizeRequest(chat=chat))
            answer = await h.http.post("/tokenize", json={"messages": messages, **options})
            assert list(reply.ids) == answer.json()["tokens"]
        for fault in (
            stub.Tokenize(pb.TokenizeRequest()),
            stub.Tokenize(pb.TokenizeRequest(prompt="x" * 3_000_000)),
            stub.Detokenize(pb.DetokenizeRequest(ids=[10**9])),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await fault
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    in_house(texts, test, ready=False)


def test_a_message_beyond_the_limit_is_refused_and_hurts_no_other(texts: Texts) -> None:
    async def test(h: House, stub: Stub) -> None:
        error = await failure(stub.Complete(request(token_ids=pb.TokenIds(ids=PROMPT * 1000))))
        assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        events = [event async for event in stub.Complete(request(max_tokens=2))]
        assert events[-1].HasField("usage")

    in_house(texts, test, overrides={"router": {"max_body_bytes": 20_000}})


def test_probes_tell_liveness_from_readiness(texts: Texts) -> None:
    serving, not_serving = (
        health_pb2.HealthCheckResponse.SERVING,
        health_pb2.HealthCheckResponse.NOT_SERVING,
    )

    async def test(h: House, stub: Stub) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{h.ports.grpc}") as channel:
            health = health_pb2_grpc.HealthStub(channel)

            async def status(service: str) -> int:
                reply = await health.Check(health_pb2.HealthCheckRequest(service=service))
                number: int = reply.status
                return number

            for service in ("", LIVENESS, READINESS, SERVICE):
                assert await status(service) == serving
            watch = health.Watch(health_pb2.HealthCheckRequest(service=SERVICE))
            assert (await watch.read()).status == serving
            h.p.report(LoadReport(ready=False))
            assert (await watch.read()).status == not_serving
            assert await status(SERVICE) == await status(READINESS) == not_serving
            assert await status("") == serving
            h.p.report(LoadReport(kv_blocks={"free": 100}))
            assert (await watch.read()).status == serving
            h.router.door.admission.draining = True
            assert (await watch.read()).status == not_serving
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await status("other")
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    in_house(texts, test)


@contextlib.asynccontextmanager
async def cable(port: int) -> AsyncIterator[tuple[int, asyncio.Event]]:
    """A port that leads to `port` while the event is set, and swallows everything else."""
    plugged, tasks = asyncio.Event(), list[asyncio.Task[None]]()
    plugged.set()
    writers: list[asyncio.StreamWriter] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            if plugged.is_set():
                writer.write(data)

    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        writers.extend((writer, far_writer))
        tasks.append(asyncio.create_task(pump(reader, far_writer)))
        tasks.append(asyncio.create_task(pump(far_reader, writer)))

    async with await asyncio.start_server(connect, "127.0.0.1", 0) as server:
        try:
            yield server.sockets[0].getsockname()[1], plugged
        finally:
            for task in tasks:
                task.cancel()
            for writer in writers:
                writer.close()


def test_a_client_that_falls_silent_is_given_up_and_its_work_cancelled(texts: Texts) -> None:
    async def test(h: House, stub: Stub) -> None:
        h.d.gate.clear()
        async with (
            cable(h.ports.grpc) as (port, plugged),
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            call = inference_pb2_grpc.InferenceStub(channel).Complete(request())
            await h.d.until(lambda w: len(w.attempts) == 1)
            plugged.clear()
            await h.d.until(lambda w: len(w.cancels) == 1)
            assert await h.router.door.drained(DEADLINE_S)
            call.cancel()

    in_house(texts, test, overrides={"router": {"grpc_keepalive_s": 1.0}})
