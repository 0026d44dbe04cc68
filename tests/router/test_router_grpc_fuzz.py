"""Whatever a client sends over gRPC, the fault is its own and has a name: never INTERNAL."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import grpc
import grpc.aio
import pytest
from fakes_house import MODEL, House, Texts, house
from fakes_pull import DEADLINE_S
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protos import inference_pb2 as pb
from protos import inference_pb2_grpc

ALLOWED = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
}
texts_of = st.text(max_size=6) | st.sampled_from(["user", "assistant", "tool", "{}", "object"])
SCALARS: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: texts_of,
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_UINT32: st.integers(0, 5) | st.integers(0, 2**32 - 1),
    FieldDescriptor.TYPE_INT32: st.integers(-3, 5) | st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_UINT64: st.integers(0, 2**64 - 1),
    FieldDescriptor.TYPE_DOUBLE: st.floats(0, 2) | st.floats(),
    FieldDescriptor.TYPE_FLOAT: st.floats(0, 2) | st.floats(width=32),
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=6),
}
MAX_DEPTH = 4


@st.composite
def filled(draw: st.DrawFn, message: Message, depth: int = 0) -> Message:
    """The message with some of its fields set, whatever fields it has or will have."""
    for field in message.DESCRIPTOR.fields:
        if draw(st.integers(0, 3)) == 0:
            set_field(draw, message, field, depth)
    return message


def set_field(draw: st.DrawFn, message: Message, field: Any, depth: int) -> None:
    if field.type == FieldDescriptor.TYPE_ENUM:
        value = draw(st.sampled_from([v.number for v in field.enum_type.values]))
        setattr(message, field.name, value)
        return
    if field.type != FieldDescriptor.TYPE_MESSAGE:
        if field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(SCALARS[field.type], max_size=3)))
        else:
            setattr(message, field.name, draw(SCALARS[field.type]))
        return
    if depth == MAX_DEPTH:
        return
    if field.message_type.GetOptions().map_entry:
        key, value = (SCALARS[f.type] for f in field.message_type.fields)
        getattr(message, field.name).update(draw(st.dictionaries(key, value, max_size=2)))
    elif field.is_repeated:
        for _ in range(draw(st.integers(0, 2))):
            draw(filled(getattr(message, field.name).add(), depth + 1))
    else:
        getattr(message, field.name).SetInParent()
        draw(filled(getattr(message, field.name), depth + 1))


@st.composite
def completes(draw: st.DrawFn) -> pb.CompleteRequest:
    """Anything at all, or a good request with one thing changed. Answers are short."""
    request = pb.CompleteRequest()
    if draw(st.booleans()):
        draw(filled(request))
    else:
        request.prompt = draw(st.text(min_size=1, max_size=9))
        fields = request.DESCRIPTOR.fields
        set_field(draw, request, fields[draw(st.integers(0, len(fields) - 1))], 0)
    request.model = MODEL
    request.max_tokens = min(request.max_tokens, 4)
    request.n = min(request.n, 2) if request.HasField("n") else 1
    return request


others = st.one_of(
    st.builds(pb.TokenizeRequest).flatmap(filled),
    st.builds(pb.DetokenizeRequest).flatmap(filled),
    st.builds(pb.CancelRequest).flatmap(filled),
)


async def status_of(stub: Any, request: Message) -> grpc.StatusCode:
    try:
        match request:
            case pb.CompleteRequest():
                async for _ in stub.Complete(request, timeout=DEADLINE_S):
                    pass
            case pb.TokenizeRequest():
                await stub.Tokenize(request, timeout=DEADLINE_S)
            case pb.DetokenizeRequest():
                await stub.Detokenize(request, timeout=DEADLINE_S)
            case pb.CancelRequest():
                await stub.Cancel(request, timeout=DEADLINE_S)
    except grpc.aio.AioRpcError as error:
        assert dict(error.trailing_metadata())["tandem-code"], error
        code: grpc.StatusCode = error.code()
        return code
    return grpc.StatusCode.OK


def ask_at_random(texts: Texts, num_requests: int) -> None:
    with asyncio.Runner() as runner:
        made = house(texts, decode=1)
        h: House = runner.run(made.__aenter__())
        seen: Counter[grpc.StatusCode] = Counter()

        async def open_channel() -> grpc.aio.Channel:
            return grpc.aio.insecure_channel(f"127.0.0.1:{h.ports.grpc}")

        channel = runner.run(open_channel())
        stub = inference_pb2_grpc.InferenceStub(channel)

        @settings(max_examples=num_requests, deadline=None, suppress_health_check=list(HealthCheck))
        @given(completes() | others)
        def check(request: Message) -> None:
            status = runner.run(status_of(stub, request))
            assert status in ALLOWED, (status, request)
            seen[status] += 1

        try:
            check()
            assert seen[grpc.StatusCode.OK] > 5, seen
            assert runner.run(h.router.door.drained(DEADLINE_S))
        finally:
            runner.run(channel.close())
            runner.run(made.__aexit__(None, None, None))


def test_no_message_is_answered_with_an_internal_error(texts: Texts) -> None:
    ask_at_random(texts, 150)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_message_of_three_thousand_is_answered_with_an_internal_error(texts: Texts) -> None:
    ask_at_random(texts, 3_000)
