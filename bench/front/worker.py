"""A decode worker without a model: `python -m bench.front.worker STEP_S` prints its address.

It speaks the real protocol. An attempt's first token leaves at once, the others with the steps: one
message a step holds a token of every choice that runs, as a real worker's does.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import grpc
import grpc.aio
import uvloop

from bench.front.process import say
from core.compat import PROTOCOL_VERSION
from core.load import LoadReport
from protos import codec, worker_pb2, worker_pb2_grpc

WORKER_ID, EPOCH, COMPAT_KEY = "synthetic", "synthetic", "synthetic"
BLOCK_SIZE = 16
_REPORT_S = 0.25
_TOKENS = range(1_000, 20_000)
"""Ids that go round, so that text is made of many pieces."""

_Unary = grpc.aio.ServicerContext[object, object]
_Context = grpc.aio.ServicerContext[worker_pb2.SessionRequest, worker_pb2.SessionEvent]


@dataclass(slots=True)
class _Stream:
    """A choice that runs: its id on the wire, the next position, and the end."""

    transfer_id: str
    choice: int
    position: int
    end: int

    def add_next(self, batch: worker_pb2.TokenBatch) -> bool:
        """Adds its next token; whether it goes on."""
        token_id = _TOKENS[(self.position * 7919) % len(_TOKENS)]
        last = self.position + 1 == self.end
        batch.tokens.add(
            transfer_id=self.transfer_id,
            choice=self.choice,
            position=self.position,
            token_id=token_id,
            finish_reason="length" if last else "",
        )
        self.position += 1
        return not last


@dataclass(slots=True)
class _Session:
    outgoing: asyncio.Queue[worker_pb2.SessionEvent] = field(default_factory=asyncio.Queue)
    streams: dict[str, list[_Stream]] = field(default_factory=dict)

    def begin(self, attempt: worker_pb2.Attempt) -> None:
        started = worker_pb2.Started(transfer_id=attempt.transfer_id)
        self.outgoing.put_nowait(worker_pb2.SessionEvent(started=started))
        first = len(attempt.token_ids) - attempt.num_prompt_tokens
        self.streams[attempt.transfer_id] = [
            _Stream(attempt.transfer_id, choice, first, attempt.sampling.max_tokens)
            for choice in attempt.choices
        ]
        self.step([attempt.transfer_id])

    def step(self, transfer_ids: list[str]) -> None:
        event, done = worker_pb2.SessionEvent(), []
        for transfer_id in transfer_ids:
            streams = self.streams[transfer_id]
            streams[:] = [stream for stream in streams if stream.add_next(event.tokens)]
            if not streams:
                del self.streams[transfer_id]
                done.append(transfer_id)
        self.outgoing.put_nowait(event)
        for transfer_id in done:
            ended = worker_pb2.AttemptDone(transfer_id=transfer_id)
            self.outgoing.put_nowait(worker_pb2.SessionEvent(done=ended))


class SyntheticWorker(worker_pb2_grpc.WorkerServicer):
    """Serves sessions; steps all their streams every `step_s`."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._load = LoadReport(kv_blocks={"free": 1_000_000})

    async def Session(
        self, requests: AsyncIterator[worker_pb2.SessionRequest], context: _Context
    ) -> AsyncIterator[worker_pb2.SessionEvent]:
        await anext(requests)  # hello
        session = _Session()
        tasks = [
            asyncio.create_task(self._read(requests, session)),
            asyncio.create_task(self._run(session)),
            asyncio.create_task(self._report(session)),
        ]
        try:
            yield worker_pb2.SessionEvent(welcome=self._info())
            while True:
                yield await session.outgoing.get()
        finally:
            for task in tasks:
                task.cancel()

    async def Describe(
        self, request: worker_pb2.DescribeRequest, context: _Unary
    ) -> worker_pb2.WorkerInfo:
        return self._info()

    async def Drain(
        self, request: worker_pb2.DrainRequest, context: _Unary
    ) -> worker_pb2.DrainReply:
        return worker_pb2.DrainReply(drained=True)

    async def AuditKv(
        self, request: worker_pb2.AuditKvRequest, context: _Unary
    ) -> worker_pb2.AuditKvReply:
        return worker_pb2.AuditKvReply(consistent=True)

    def _info(self) -> worker_pb2.WorkerInfo:
        return worker_pb2.WorkerInfo(
            worker_id=WORKER_ID,
            epoch=EPOCH,
            role="decode",
            compat_key=COMPAT_KEY,
            block_size=BLOCK_SIZE,
            protocol_version=PROTOCOL_VERSION,
            load=codec.load_to_wire(self._load),
        )

    async def _read(
        self, requests: AsyncIterator[worker_pb2.SessionRequest], session: _Session
    ) -> None:
        async for request in requests:
            match request.WhichOneof("kind"):
                case "decode":
                    session.begin(request.decode.attempt)
                case "cancel":
                    session.streams.pop(request.cancel.transfer_id, None)

    async def _run(self, session: _Session) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + self._step_s, loop.time())
            await asyncio.sleep(due - loop.time())
            if session.streams:
                session.step(list(session.streams))

    async def _report(self, session: _Session) -> None:
        while True:
            await asyncio.sleep(_REPORT_S)
            load = codec.load_to_wire(self._load)
            session.outgoing.put_nowait(worker_pb2.SessionEvent(load=load))


async def _serve(step_s: float) -> None:
    server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
    worker_pb2_grpc.add_WorkerServicer_to_server(SyntheticWorker(step_s), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    say(f"127.0.0.1:{port}")
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await server.stop(None)


if __name__ == "__main__":
    uvloop.run(_serve(float(sys.argv[1])))
