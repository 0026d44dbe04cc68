"""`tandem.inference.v1.Inference`: the public gRPC API on the same door as HTTP."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, closing

import grpc.aio

from core.errors import TandemError
from protos import inference_pb2 as pb
from protos import inference_pb2_grpc
from router.door import Door
from router.generation import Generation
from router.identifiers import client_request_id, new_request_id
from router.message.reader import MessageReader
from router.rpc.convert import (
    delta_to_wire,
    prompt_to_wire,
    spec_of,
    tokenize_spec_of,
    usage_to_wire,
)
from router.rpc.errors import Context, faults_told
from router.rpc.send_watch import SendWatch
from router.tenants.call import current_call
from router.tokenization import detokenize, tokenize

SEND_TIMEOUT_S = 60.0
"""For a client to make room for the next message, as over HTTP."""
ID_KEY = "x-request-id"
OWN_ID_KEY = "tandem-request-id"


class InferenceService(inference_pb2_grpc.InferenceServicer):
    """gRPC cancels a handler when the client ends the call."""

    def __init__(self, door: Door) -> None:
        self._door = door

    async def Complete(
        self,
        request: pb.CompleteRequest,
        context: grpc.aio.ServicerContext[pb.CompleteRequest, pb.CompleteEvent],
    ) -> AsyncIterator[pb.CompleteEvent]:
        received, client_id = self._door.clock.now(), _client_id(context)
        async with faults_told(context):
            try:
                spec = spec_of(request, timeout_s=context.time_remaining())
            except TandemError:
                await _name(context)
                raise
            generation = Generation(self._door, spec, received, client_id=client_id)
            own_id = generation.request_id
            # At once: who wants to cancel before the first token has to know the name.
            await context.send_initial_metadata(
                ((ID_KEY, client_id or own_id), (OWN_ID_KEY, own_id))
            )
            events = _events(request, generation)
            with closing(SendWatch(SEND_TIMEOUT_S)) as sending:
                async with aclosing(events):
                    async for event in events:
                        with sending:
                            yield event

    async def ListModels(
        self, request: pb.ListModelsRequest, context: Context
    ) -> pb.ListModelsReply:
        await _name(context)
        settings = self._door.settings
        model = pb.ListModelsReply.Model(id=settings.model, max_model_len=settings.max_model_len)
        return pb.ListModelsReply(models=[model])

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelReply:
        await _name(context)
        async with faults_told(context):
            own_id = self._door.running.cancel(current_call().tenant, request.request_id)
        return pb.CancelReply(request_id=own_id)

    async def Tokenize(self, request: pb.TokenizeRequest, context: Context) -> pb.TokenizeReply:
        await _name(context)
        async with faults_told(context):
            tokens = await tokenize(self._door, tokenize_spec_of(request))
        return pb.TokenizeReply(
            ids=tokens.ids,
            strings=tokens.strings,
            max_model_len=self._door.settings.max_model_len,
        )

    async def Detokenize(
        self, request: pb.DetokenizeRequest, context: Context
    ) -> pb.DetokenizeReply:
        await _name(context)
        async with faults_told(context):
            text = await detokenize(self._door, request.ids, model=request.model or None)
        return pb.DetokenizeReply(text=text)


async def _events(
    request: pb.CompleteRequest, generation: Generation
) -> AsyncGenerator[pb.CompleteEvent, None]:
    """The whole answer. Raises TandemError; close it always."""
    readers: dict[int, MessageReader | None] = {}
    async with aclosing(generation.deltas()) as deltas:
        async for delta in deltas:
            if not readers and (prompt := prompt_to_wire(request, generation)):
                yield prompt
            before = "" if delta.choice in readers else generation.echo_text
            if delta.choice not in readers:
                readers[delta.choice] = generation.reader()
            reader = readers[delta.choice]
            message = None if reader is None else reader.read(delta)
            yield delta_to_wire(delta, message, before)
    yield usage_to_wire(generation, include_timings=request.include_timings)


def _client_id(context: Context) -> str:
    """What the client calls this call; empty if nothing."""
    for key, value in context.invocation_metadata() or ():
        if key == ID_KEY and isinstance(value, str):
            return client_request_id(value)
    return ""


async def _name(context: Context) -> None:
    """Says under which id the call is answered."""
    await context.send_initial_metadata(((ID_KEY, _client_id(context) or new_request_id()),))
