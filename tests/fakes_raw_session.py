"""A router by hand: one session to one real worker, on which a test says what no router would."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TypeVar

import grpc.aio
from fakes_loop_thread import DEADLINE_S

from core.compat import PROTOCOL_VERSION
from core.handoff import Handoff
from core.request import Attempt, SamplingParams
from protos import codec, worker_pb2, worker_pb2_grpc
from state.store import Member

E = TypeVar("E")


class RawSession:
    """Sends legs of attempts, and waits for events of a kind."""

    def __init__(
        self, call: grpc.aio.StreamStreamCall[worker_pb2.SessionRequest, worker_pb2.SessionEvent]
    ) -> None:
        self._call = call
        self._unread: list[codec.WorkerEvent] = []

    async def prefill(self, attempt: Attempt) -> None:
        await self._send(worker_pb2.SessionRequest(prefill=codec.attempt_to_wire(attempt)))

    async def decode(self, attempt: Attempt, handoff: Handoff) -> None:
        decode = worker_pb2.Decode(
            attempt=codec.attempt_to_wire(attempt), handoff=codec.handoff_to_wire(handoff)
        )
        await self._send(worker_pb2.SessionRequest(decode=decode))

    async def take(self, kind: type[E]) -> E:
        """The next event of this kind; what comes before it is dropped."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                while self._unread:
                    event = self._unread.pop(0)
                    if isinstance(event, kind):
                        return event
                self._unread += codec.events_from_wire(await self._read())

    async def _send(self, request: worker_pb2.SessionRequest) -> None:
        await self._call.write(request)

    async def _read(self) -> worker_pb2.SessionEvent:
        event = await self._call.read()
        assert isinstance(event, worker_pb2.SessionEvent), "the worker ended the session"
        return event


@contextlib.asynccontextmanager
async def raw_session(member: Member) -> AsyncIterator[RawSession]:
    """A session to this incarnation; its end cancels what it asked for."""
    options = [("grpc.max_receive_message_length", 64 * 1024 * 1024)]  # as a router's
    async with grpc.aio.insecure_channel(member.address, options=options) as channel:
        stub: worker_pb2_grpc.WorkerAsyncStub = worker_pb2_grpc.WorkerStub(channel)
        call = stub.Session()
        hello = worker_pb2.Hello(
            router_id="by hand", expected_epoch=member.epoch, protocol_version=PROTOCOL_VERSION
        )
        await call.write(worker_pb2.SessionRequest(hello=hello))
        await call.read()
        yield RawSession(call)
        await call.done_writing()


def attempt(transfer_id: str, token_ids: list[int], *, max_tokens: int = 5) -> Attempt:
    """A greedy attempt with all the time there is."""
    return Attempt(
        request_id=f"request of {transfer_id}",
        transfer_id=transfer_id,
        model="byte-model",
        token_ids=tuple(token_ids),
        num_prompt_tokens=len(token_ids),
        choices=(0,),
        sampling=SamplingParams(max_tokens, temperature=0.0, ignore_eos=True),
        deadline_s=1e6,
    )
