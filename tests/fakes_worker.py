"""A worker that speaks the real protocol on a real gRPC server, with a language for an engine.

A session's attempts run as tasks; each step asks the gate, then sends one token of every choice.
P puts its first tokens into a `FakeKv` under the transfer id; D takes them, as a pull does. Tests
hold the gate, kill the server, go silent, refuse or fail; and wait for what it has seen.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

import grpc
import grpc.aio
from fakes_language import FakeLanguage
from fakes_process import DEADLINE_S
from fakes_pull import FakeKv

from bench.tandem_server import free_port
from core.compat import PROTOCOL_VERSION
from core.handoff import Handoff, Moved, Started
from core.load import LoadReport
from core.request import (
    Attempt,
    AttemptDone,
    AttemptFailed,
    LegTimings,
    Phase,
    Pinned,
    PinnedPrefix,
    TokenEvent,
)
from protos import codec, worker_pb2, worker_pb2_grpc
from protos.codec import WorkerEvent
from state.store import Member

REPORT_S = 0.05
BLOCK_SIZE = 16

Unary = grpc.aio.ServicerContext[object, object]
Context = grpc.aio.ServicerContext[worker_pb2.SessionRequest, worker_pb2.SessionEvent]


@dataclass
class _Session:
    """One router's stream: what is to be sent, and its running attempts."""

    outgoing: asyncio.Queue[WorkerEvent | None] = field(default_factory=asyncio.Queue)
    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    cancelled_choices: set[tuple[str, int]] = field(default_factory=set)
    leaving: set[str] = field(default_factory=set)
    """Attempts that were asked to move."""


@dataclass
class Trap:
    """Kills the worker that is about to send this output position; once. Workers may share it."""

    position: int | None = None
    victim: FakeWorker | None = None

    def springs(self, position: int, worker: FakeWorker) -> bool:
        if position != self.position:
            return False
        self.position, self.victim = None, worker
        return True


@dataclass
class FakeWorker(worker_pb2_grpc.WorkerServicer):
    """One incarnation at a time; `restart` begins the next one at the same address."""

    role: Phase
    kv: FakeKv
    language: FakeLanguage = FakeLanguage()
    worker_id: str = ""
    compat_key: str = "key"
    num_cached_tokens: int = 0
    num_pinned_tokens: int | None = None
    """Granted to who asks to pin; None: all that is asked and allowed."""
    load: LoadReport = LoadReport(kv_blocks={"free": 10_000})

    trap: Trap = field(default_factory=lambda: Trap())
    silent: bool = False
    """Sends nothing more, like a stopped process."""
    deaf: bool = False
    """What comes in is lost, as on a stream that is about to break."""
    num_unheard: int = 0
    failures: list[AttemptFailed] = field(default_factory=list)
    """The next attempts fail with these; their transfer ids are filled in."""

    keeps_no_kv: bool = False
    """What is asked to move is handed back without its KV."""

    attempts: list[Attempt] = field(default_factory=list)
    handoffs: list[Handoff | None] = field(default_factory=list)
    cancels: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    moves: list[str] = field(default_factory=list)
    """Attempts that were asked to move."""
    ended: list[str] = field(default_factory=list)
    """Transfer ids whose task is over, in whatever way."""
    epoch: str = ""
    port: int = 0

    def __post_init__(self) -> None:
        self.worker_id = self.worker_id or f"{self.role}-{secrets.token_hex(2)}"
        self.gate = asyncio.Event()
        self.gate.set()
        self.tokens_leave = asyncio.Event()
        """Cleared: what is said from the next token on stays here."""
        self.tokens_leave.set()
        self._changed = asyncio.Condition()
        self._sessions: list[_Session] = []
        self._server: grpc.aio.Server | None = None

    # ---- life

    async def start(self) -> Member:
        self.epoch = secrets.token_hex(8)
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        worker_pb2_grpc.add_WorkerServicer_to_server(self, self._server)
        self.port = self.port or free_port()  # nobody takes it before a restart
        self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()
        return self.member

    @property
    def member(self) -> Member:
        return Member(
            worker_id=self.worker_id,
            epoch=self.epoch,
            role=self.role,
            address=f"127.0.0.1:{self.port}",
            model="fake",
            compat_key=self.compat_key,
        )

    async def die(self) -> None:
        """The process is gone: streams break, nothing is said."""
        server, self._server = self._server, None
        if server is not None:
            await server.stop(None)

    def report(self, load: LoadReport) -> None:
        """Tells every router a new load at once."""
        self.load = load
        for session in self._sessions:
            session.outgoing.put_nowait(load)

    def drop_sessions(self) -> None:
        """Ends the streams, but not the process."""
        for session in self._sessions:
            session.outgoing.put_nowait(None)

    async def until(self, condition: Callable[[FakeWorker], bool]) -> None:
        """Waits for something this worker has seen or done."""
        async with asyncio.timeout(DEADLINE_S), self._changed:
            await self._changed.wait_for(lambda: condition(self))

    # ---- protocol

    async def Describe(
        self, request: worker_pb2.DescribeRequest, context: Unary
    ) -> worker_pb2.WorkerInfo:
        return self._info()

    async def Drain(
        self, request: worker_pb2.DrainRequest, context: Unary
    ) -> worker_pb2.DrainReply:
        self.report(replace(self.load, draining=True))
        await self.until(lambda w: not w.num_open)
        return worker_pb2.DrainReply(drained=True)

    async def AuditKv(
        self, request: worker_pb2.AuditKvRequest, context: Unary
    ) -> worker_pb2.AuditKvReply:
        blocks = self.load.kv_blocks
        return worker_pb2.AuditKvReply(
            blocks_by_state=blocks, num_blocks=sum(blocks.values()), consistent=True
        )

    @property
    def num_open(self) -> int:
        """Attempts that still run."""
        return len(self.attempts) - len(self.ended)

    async def Session(
        self, requests: AsyncIterator[worker_pb2.SessionRequest], context: Context
    ) -> AsyncIterator[worker_pb2.SessionEvent]:
        hello = (await anext(requests)).hello
        if hello.expected_epoch != self.epoch:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "another epoch")
        session = _Session()
        self._sessions.append(session)
        reader = asyncio.create_task(self._read(requests, session))
        try:
            yield worker_pb2.SessionEvent(welcome=self._info())
            while (event := await self._next(session)) is not None:
                if isinstance(event, TokenEvent):
                    await self.tokens_leave.wait()
                if not self.silent:
                    for message in codec.events_to_wire([event]):
                        yield message
        finally:
            self._sessions.remove(session)
            for task in (reader, *session.tasks.values()):
                task.cancel()

    def _info(self) -> worker_pb2.WorkerInfo:
        return worker_pb2.WorkerInfo(
            worker_id=self.worker_id,
            epoch=self.epoch,
            role=self.role,
            compat_key=self.compat_key,
            block_size=BLOCK_SIZE,
            protocol_version=PROTOCOL_VERSION,
            load=codec.load_to_wire(self.load),
        )

    async def _next(self, session: _Session) -> WorkerEvent | None:
        """What to send next: at the latest after a while, a load report."""
        try:
            async with asyncio.timeout(REPORT_S):
                return await session.outgoing.get()
        except TimeoutError:
            return self.load

    async def _read(
        self, requests: AsyncIterator[worker_pb2.SessionRequest], session: _Session
    ) -> None:
        async for request in requests:
            if self.deaf:
                self.num_unheard += 1
                await self._notify()
                continue
            match request.WhichOneof("kind"):
                case "prefill":
                    self._begin(session, codec.attempt_from_wire(request.prefill), None)
                case "decode":
                    wire = request.decode
                    has_handoff = wire.HasField("handoff")
                    handoff = codec.handoff_from_wire(wire.handoff) if has_handoff else None
                    self._begin(session, codec.attempt_from_wire(wire.attempt), handoff)
                case "cancel":
                    self._cancel(session, request.cancel)
                case "move":
                    self.moves.append(request.move.transfer_id)
                    session.leaving.add(request.move.transfer_id)
            await self._notify()

    def _begin(self, session: _Session, attempt: Attempt, handoff: Handoff | None) -> None:
        assert handoff is None or handoff.transfer_id == attempt.transfer_id
        self.attempts.append(attempt)
        self.handoffs.append(handoff)
        task = asyncio.create_task(self._run(session, attempt, handoff))
        session.tasks[attempt.transfer_id] = task

    def _cancel(self, session: _Session, cancel: worker_pb2.Cancel) -> None:
        choices = tuple(cancel.choices)
        self.cancels.append((cancel.transfer_id, choices))
        session.cancelled_choices |= {(cancel.transfer_id, c) for c in choices}
        task = session.tasks.get(cancel.transfer_id)
        if task is not None and not choices:
            task.cancel()
        if self.role is Phase.PREFILL and not choices:
            self.kv.end(cancel.transfer_id)
        if self.role is Phase.DECODE and not choices:
            for kept in [kept for kept in self.kv.open if "+" in kept]:
                if kept.startswith(cancel.transfer_id):  # itself, or kept for a choice of it
                    self.kv.end(kept)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # ---- legs

    async def _run(self, session: _Session, attempt: Attempt, handoff: Handoff | None) -> None:
        try:
            if self.failures:
                failed = replace(self.failures.pop(0), transfer_id=attempt.transfer_id)
                session.outgoing.put_nowait(failed)
            elif self.role is Phase.PREFILL:
                await self._prefill(session, attempt)
            else:
                await self._decode(session, attempt, handoff)
        finally:
            self.ended.append(attempt.transfer_id)
            # Shielded: a cancelled task still has to tell who waits for its end.
            await asyncio.shield(self._notify())

    async def _prefill(self, session: _Session, attempt: Attempt) -> None:
        self.kv.grant(attempt.transfer_id)
        try:
            session.outgoing.put_nowait(self._started(attempt, self._handoff(attempt)))
            await self._step(attempt.num_emitted)
            self._score(session, attempt)
            self._pin(session, attempt)
            first = [
                self.language.next_event(attempt, c, (), position=attempt.num_emitted)
                for c in attempt.choices
            ]
        except asyncio.CancelledError:
            self.kv.end(attempt.transfer_id)
            raise
        for event in first:
            session.outgoing.put_nowait(event)
        if all(event.finish_reason for event in first):
            self.kv.end(attempt.transfer_id)
        self.kv.complete(attempt.transfer_id, first)
        session.outgoing.put_nowait(AttemptDone(attempt.transfer_id))

    async def _decode(self, session: _Session, attempt: Attempt, handoff: Handoff | None) -> None:
        emitted: dict[int, list[int]] = {c: [] for c in attempt.choices}
        live = set(attempt.choices)
        if handoff is None:
            session.outgoing.put_nowait(self._started(attempt, None))
            self._score(session, attempt)
            self._pin(session, attempt)
        else:
            first = await self.kv.pull(attempt.transfer_id)
            if first is None:
                session.outgoing.put_nowait(_pull_failed(attempt.transfer_id))
                return
            for event in first:
                emitted[event.choice].append(event.token_id)
            live -= {event.choice for event in first if event.finish_reason}
        position = attempt.num_emitted + (handoff is not None)
        while live := self._uncancelled(session, attempt, live):
            await self._step(position)
            for choice in sorted(live):
                event = self.language.next_event(
                    attempt, choice, emitted[choice], position=position
                )
                emitted[choice].append(event.token_id)
                session.outgoing.put_nowait(event)
                if event.finish_reason:
                    live.discard(choice)
            position += 1
            if attempt.transfer_id in session.leaving:
                for choice in sorted(self._uncancelled(session, attempt, live)):
                    session.outgoing.put_nowait(self._let_go(attempt, choice, emitted[choice]))
                break
        timings = LegTimings(transfer_s=0.01, handoff_s=0.001)
        session.outgoing.put_nowait(AttemptDone(attempt.transfer_id, timings))

    def _let_go(self, attempt: Attempt, choice: int, emitted: list[int]) -> Moved:
        """The KV of all tokens but the last is kept under an id of its own."""
        if self.keeps_no_kv:
            return Moved(attempt.transfer_id, (choice,))
        transfer_id = f"{attempt.transfer_id}+{choice}"
        self.kv.grant(transfer_id)
        last = TokenEvent(transfer_id, choice, attempt.num_emitted + len(emitted) - 1, emitted[-1])
        self.kv.complete(transfer_id, [last])
        kept = replace(attempt, transfer_id=transfer_id)
        num_tokens = len(attempt.token_ids) + len(emitted) - 1
        handoff = replace(
            self._handoff(kept), num_tokens=num_tokens, num_blocks=-(-num_tokens // BLOCK_SIZE)
        )
        return Moved(attempt.transfer_id, (choice,), handoff)

    def _score(self, session: _Session, attempt: Attempt) -> None:
        scores = self.language.prompt_logprobs(attempt)
        if scores is not None:
            session.outgoing.put_nowait(scores)

    def _pin(self, session: _Session, attempt: Attempt) -> None:
        if (wish := attempt.pins) is None:
            return
        longest = max(wish.prefixes, key=lambda p: p.num_tokens, default=PinnedPrefix(0, 0.0))
        granted = self.num_pinned_tokens
        if granted is None:
            granted = longest.num_tokens // BLOCK_SIZE * BLOCK_SIZE
        if wish.max_owned_tokens is not None and granted > wish.max_owned_tokens:
            granted = 0
        pinned = Pinned(attempt.transfer_id, granted, granted * longest.ttl_s)
        session.outgoing.put_nowait(pinned)

    async def _step(self, position: int) -> None:
        """Waits at the gate; or dies, if this is the position to die at."""
        async with asyncio.timeout(DEADLINE_S):
            await self.gate.wait()
        if self.trap.springs(position, self):
            await asyncio.shield(asyncio.create_task(self.die()))
            # `die` cancels this task with its session; until then nothing more is sent.
            await asyncio.get_running_loop().create_future()

    def _uncancelled(self, session: _Session, attempt: Attempt, live: set[int]) -> set[int]:
        gone = session.cancelled_choices
        return {c for c in live if (attempt.transfer_id, c) not in gone}

    def _started(self, attempt: Attempt, handoff: Handoff | None) -> Started:
        return Started(attempt.transfer_id, 0.0, self.num_cached_tokens, handoff)

    def _handoff(self, attempt: Attempt) -> Handoff:
        return Handoff(
            transfer_id=attempt.transfer_id,
            worker_id=self.worker_id,
            epoch=self.epoch,
            address=self.member.address,
            compat_key=self.compat_key,
            num_tokens=len(attempt.token_ids),
            first_block=0,
            num_blocks=-(-len(attempt.token_ids) // BLOCK_SIZE),
            lease_s=30.0,
        )


def _pull_failed(transfer_id: str) -> AttemptFailed:
    return AttemptFailed(transfer_id, "transfer_failed", "nothing there", True, "unknown_transfer")
