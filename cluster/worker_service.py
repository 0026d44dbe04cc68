"""The worker's gRPC face: sessions of routers in, messages for the step loop out, and back.

    hello           refused unless it names this epoch; answered with a welcome
    prefill/decode  the attempt belongs to the session from now on; posted to the step loop
    move, cancel    posted as they are: whoever runs the attempt, or keeps its KV, knows what to do
    events          come from the step loop, go to the session that owns the attempt
    load            sent when it changed, at most every `load_report_s`, and as a sign of life
                at least every `heartbeat_s`
    end             by either side, ours when the worker stops: every attempt the session still
                    owns is cancelled

Everything here runs on the event loop; only `deliver` may be called from elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TypeAlias

import grpc

from cluster.leg_watch import LegWatch
from cluster.shell import Ending
from cluster.worker_cancels import CancelWatch
from cluster.worker_drain import DrainGate
from core.alarm import Alarm
from core.compat import PROTOCOL_VERSION
from core.config import WorkerConfig
from core.faults import FaultPoint, Faults
from core.load import LoadReport
from core.request import Attempt, AttemptDone, AttemptFailed
from engine.grammar_gate import GrammarGate
from engine.intake import failed
from engine.role import Cancel, Move, Submit
from engine.step_loop import StepLoop
from kv_cache.block_pool import BlockPool
from protos import codec, worker_pb2, worker_pb2_grpc

_AUDIT_TIMEOUT_S = 10.0
"""Longest wait for the pause between two steps in which the pool is looked at."""

SessionContext: TypeAlias = (
    "grpc.aio.ServicerContext[worker_pb2.SessionRequest, worker_pb2.SessionEvent]"
)

_MAX_UNREAD_EVENTS = 65_536
"""A router that reads nothing is cut off here; its attempts would only pile up."""


class RouterSession:
    """One router's stream: the events it has not read yet."""

    def __init__(self) -> None:
        self._unread: list[codec.WorkerEvent] = []
        self._arrived = Alarm()
        self.overrun = False
        self.ended = False

    def put(self, events: list[codec.WorkerEvent]) -> None:
        self._unread += events
        self.overrun = self.overrun or len(self._unread) > _MAX_UNREAD_EVENTS
        self._arrived.set()

    def end(self) -> None:
        """Nothing follows what was put before."""
        self.ended = True
        self._arrived.set()

    async def take(self, timeout_s: float) -> list[codec.WorkerEvent]:
        """What has arrived, waiting at most `timeout_s` for something."""
        await self._arrived.wait(timeout_s)
        events, self._unread = self._unread, []
        return events

    def close(self) -> None:
        """Nobody takes from it any more."""
        self._arrived.close()


class WorkerService(worker_pb2_grpc.WorkerServicer):
    """Serves `Worker` for one role in one process."""

    def __init__(
        self,
        describe: Callable[[], worker_pb2.WorkerInfo],
        step_loop: StepLoop,
        pool: BlockPool,
        gate: DrainGate,
        cancels: CancelWatch,
        grammars: GrammarGate,
        legs: LegWatch,
        *,
        load: Callable[[], LoadReport],
        worker: WorkerConfig,
        faults: Faults | None = None,
    ) -> None:
        self._describe = describe
        self._step_loop = step_loop
        self._pool = pool
        self._gate = gate
        self._cancels = cancels
        self._grammars = grammars
        self._legs = legs
        self._load = load
        self._load_report_s = worker.load_report_s
        self._heartbeat_s = worker.heartbeat_s
        self._faults = faults
        self._owner: dict[str, RouterSession] = {}
        self._sessions: set[RouterSession] = set()
        self._stopping = False

    def deliver(self, events: list[codec.WorkerEvent]) -> None:
        """Hands the step loop's events to the sessions that own their attempts."""
        by_session: dict[int, tuple[RouterSession, list[codec.WorkerEvent]]] = {}
        for event in events:
            assert not isinstance(event, LoadReport), "load reports are per session"
            session = self._owner.get(event.transfer_id)
            if session is None:
                continue  # its router went away
            by_session.setdefault(id(session), (session, []))[1].append(event)
            if isinstance(event, AttemptDone | AttemptFailed):
                del self._owner[event.transfer_id]
                self._legs.ended(event)
        for session, own in by_session.values():
            session.put(own)

    def stop(self) -> None:
        """Ends all sessions, also those to come. Idempotent."""
        self._stopping = True
        self._gate.stop()
        for session in self._sessions:
            session.end()

    async def Describe(
        self,
        request: worker_pb2.DescribeRequest,
        context: grpc.aio.ServicerContext[worker_pb2.DescribeRequest, worker_pb2.WorkerInfo],
    ) -> worker_pb2.WorkerInfo:
        return self._describe()

    async def Session(
        self,
        request_iterator: AsyncIterator[worker_pb2.SessionRequest],
        context: SessionContext,
    ) -> AsyncIterator[worker_pb2.SessionEvent]:
        welcome = self._describe()
        await _check_hello(await anext(request_iterator, None), welcome, context)
        session = self._open()
        reader = asyncio.create_task(self._read(session, request_iterator))
        try:
            yield worker_pb2.SessionEvent(welcome=welcome)
            async for message in self._write(session, reader):
                yield message
        finally:
            reader.cancel()
            self._abandon(session)
        if session.overrun:
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "events are not being read")

    async def Drain(
        self,
        request: worker_pb2.DrainRequest,
        context: grpc.aio.ServicerContext[worker_pb2.DrainRequest, worker_pb2.DrainReply],
    ) -> worker_pb2.DrainReply:
        ending = Ending.REPLACED if request.restart else Ending.RETIRED
        remaining = await self._gate.retire(request.deadline_s, ending)
        return worker_pb2.DrainReply(drained=remaining == 0, num_remaining=remaining)

    async def AuditKv(
        self,
        request: worker_pb2.AuditKvRequest,
        context: grpc.aio.ServicerContext[worker_pb2.AuditKvRequest, worker_pb2.AuditKvReply],
    ) -> worker_pb2.AuditKvReply:
        """Runs in the step loop, between steps: the only place where the pool stands still."""
        done: asyncio.Future[worker_pb2.AuditKvReply] = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()
        self._step_loop.call(lambda: loop.call_soon_threadsafe(_resolve, done, self._audit()))
        timeout_s = min(context.time_remaining() or _AUDIT_TIMEOUT_S, _AUDIT_TIMEOUT_S)
        try:
            return await asyncio.wait_for(done, timeout_s)
        except TimeoutError:
            message = f"no step ended within {timeout_s:g} s: the step loop is stuck or dead"
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, message)
            raise AssertionError("abort raises") from None

    async def _read(
        self, session: RouterSession, requests: AsyncIterator[worker_pb2.SessionRequest]
    ) -> None:
        async for request in requests:
            match request.WhichOneof("kind"):
                case "prefill":
                    self._submit(session, Submit(codec.attempt_from_wire(request.prefill)))
                case "decode":
                    attempt = codec.attempt_from_wire(request.decode.attempt)
                    handoff = None
                    if request.decode.HasField("handoff"):
                        handoff = codec.handoff_from_wire(request.decode.handoff)
                    self._submit(session, Submit(attempt, handoff))
                case "cancel":
                    self._cancel(request.cancel)
                case "move":
                    move = Move(request.move.transfer_id)
                    self._grammars.after(move.transfer_id, partial(self._step_loop.post, move))

    def _submit(self, session: RouterSession, submit: Submit) -> None:
        refusal = self._refuse(submit.attempt)
        if refusal is not None:
            session.put([refusal])
            return
        self._owner[submit.attempt.transfer_id] = session
        self._legs.submitted(submit.attempt, submit.handoff)
        self._grammars.submit(submit)

    def _cancel(self, cancel: worker_pb2.Cancel) -> None:
        if cancel.choices:
            some = Cancel(cancel.transfer_id, tuple(cancel.choices))
            self._grammars.after(cancel.transfer_id, partial(self._step_loop.post, some))
        else:
            self._cancel_all(cancel.transfer_id)

    def _cancel_all(self, transfer_id: str) -> None:
        self._grammars.after(transfer_id, partial(self._cancels.cancel, transfer_id))

    def _refuse(self, attempt: Attempt) -> AttemptFailed | None:
        if attempt.transfer_id in self._owner:
            return failed(attempt.transfer_id, "duplicate", "this transfer id is in use")
        if self._gate.draining:
            message = "this worker is draining"
            return failed(attempt.transfer_id, "draining", message, retryable=True)
        return None

    async def _write(
        self, session: RouterSession, reader: asyncio.Task[None]
    ) -> AsyncIterator[worker_pb2.SessionEvent]:
        """Events as they come, and the load whenever it changed; ends with the session."""
        loop = asyncio.get_running_loop()
        reported: LoadReport | None = None
        reported_at = loop.time()
        while not session.overrun:
            events = await session.take(self._load_report_s)
            for message in codec.events_to_wire(events):
                if self._faults is not None and await _is_cut(self._faults):
                    return
                yield message
            age_s = loop.time() - reported_at
            if reported is None or age_s >= self._load_report_s:
                load = self._load()
                if load != reported or age_s >= self._heartbeat_s:
                    reported, reported_at = load, loop.time()
                    yield worker_pb2.SessionEvent(load=codec.load_to_wire(load))
            if reader.done() or session.ended:
                return

    def _open(self) -> RouterSession:
        session = RouterSession()
        self._sessions.add(session)
        if self._stopping:
            session.end()
        return session

    def _abandon(self, session: RouterSession) -> None:
        self._sessions.discard(session)
        session.close()
        owned = [key for key, owner in self._owner.items() if owner is session]
        for transfer_id in owned:
            del self._owner[transfer_id]
            self._legs.abandoned(transfer_id)
            self._cancel_all(transfer_id)

    def _audit(self) -> worker_pb2.AuditKvReply:
        info, reply = self._describe(), audit(self._pool)
        reply.worker_id, reply.epoch, reply.role = info.worker_id, info.epoch, info.role
        return reply


def audit(pool: BlockPool) -> worker_pb2.AuditKvReply:
    """The pool's blocks by state and holder, and whether its books agree."""
    problem = ""
    try:
        pool.check_integrity()
    except AssertionError as error:
        problem = str(error)
    holders = [
        worker_pb2.AuditKvReply.Holder(kind=holder.kind, id=holder.id, num_blocks=num_blocks)
        for holder, num_blocks in pool.holders()
    ]
    return worker_pb2.AuditKvReply(
        blocks_by_state=pool.blocks_by_state(),
        num_blocks=pool.num_blocks,
        holders=holders,
        pinned_blocks=pool.pinned_by_owner(),
        consistent=not problem,
        problem=problem,
    )


async def _check_hello(
    request: worker_pb2.SessionRequest | None,
    welcome: worker_pb2.WorkerInfo,
    context: SessionContext,
) -> None:
    if request is None or request.WhichOneof("kind") != "hello":
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a session begins with a hello")
    assert request is not None
    hello = request.hello
    if hello.protocol_version != PROTOCOL_VERSION:
        message = f"protocol {hello.protocol_version}; this worker speaks {PROTOCOL_VERSION}"
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)
    if hello.expected_epoch and hello.expected_epoch != welcome.epoch:
        message = f"epoch {hello.expected_epoch} is over; this is {welcome.epoch}"
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)


def _resolve(
    future: asyncio.Future[worker_pb2.AuditKvReply], reply: worker_pb2.AuditKvReply
) -> None:
    if not future.done():
        future.set_result(reply)


async def _is_cut(faults: Faults) -> bool:
    """Whether a fault ends the session before its next event, which it may also delay."""
    fault = faults.take(FaultPoint.SESSION)
    if fault is None:
        return False
    await asyncio.sleep(fault.delay_s)
    return fault.action is not None
