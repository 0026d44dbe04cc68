"""One multiplexed stream to one incarnation of a worker.

    connect   open the channel, say hello(expected epoch), await welcome; wrong epoch: stay away
    serve     Prefill, Decode, Move and Cancel go out; events go to the sink of their transfer id;
              when the worker begins to drain, every attempt hears of it
    lose      stream ended, silent too long, or refused: every attempt hears WorkerLost at once;
              cancels that it may not have heard are said when this incarnation is met again
    back off  wait, doubling up to a limit, and connect again; `close` ends it from any state

A worker reports its load several times a second, so silence means that it is stopped or unreachable
even when the connection looks alive.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import grpc
import grpc.aio

from core.compat import PROTOCOL_VERSION
from core.handoff import Handoff
from core.load import LoadReport
from core.request import Attempt, AttemptDone, AttemptFailed
from core.silence import Silence
from protos import codec, worker_pb2, worker_pb2_grpc
from protos.secure_grpc import PeerCertificates, open_channel
from router.fleet.assignments import Assignment, Assignments
from router.fleet.leg_event import FromLeg, OnLegEnd, Sink, WorkerDraining, WorkerLost
from router.fleet.policy import WorkerView
from state.store import Member

log = logging.getLogger(__name__)

_MAX_CANCELS = 4096

CHANNEL_OPTIONS = (
    # Finds a dead host under an idle stream; the load reports in between keep servers content.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
    # Our own back-off decides when to connect, gRPC's must not add minutes to it.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Sessions are few; a shared connection would let one worker's failure touch another's stream.
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """Deadlines of a session in seconds, and how it is protected."""

    router_id: str
    connect_timeout_s: float = 5.0
    silence_s: float = 5.0
    """No message for this long: the worker is lost."""
    first_backoff_s: float = 0.05
    last_backoff_s: float = 2.0
    certificates: PeerCertificates = None


class WorkerSession:
    """The router's only way to one incarnation of a worker. Lives on one event loop."""

    def __init__(
        self,
        member: Member,
        settings: SessionSettings,
        on_change: Callable[[], None],
        on_leg_end: OnLegEnd,
    ) -> None:
        self.member = member
        self.retired = False
        """No longer a member: finishes what it has, gets nothing new."""
        self._settings = settings
        self._on_change = on_change
        self._on_leg_end = on_leg_end
        self._info: worker_pb2.WorkerInfo | None = None
        self._load = LoadReport(ready=False)
        self.num_blocks = 0
        """Of the worker's pool; 0: it has not said."""
        self._assignments = Assignments()
        self._sinks: dict[str, Sink] = {}
        self._outgoing: asyncio.Queue[worker_pb2.SessionRequest | None] = asyncio.Queue()
        """None ends the stream."""
        self._cancels: deque[tuple[float, worker_pb2.SessionRequest]] = deque(maxlen=_MAX_CANCELS)
        """When they were said, and to whom nobody may have listened; all those of the time without
        a stream. A worker that was done with an attempt may keep KV for it, and does not give that
        up when a stream ends."""
        self._closing = asyncio.Event()
        self._is_unreachable = False

    @property
    def connected(self) -> bool:
        return self._info is not None

    @property
    def load(self) -> LoadReport:
        return self._load

    @property
    def num_attempts(self) -> int:
        return len(self._sinks)

    def view(self) -> WorkerView | None:
        """What the policy may know; None while there is no connection or no membership."""
        if self._info is None or self.retired:
            return None
        assigned = self._assignments.total()
        return WorkerView(
            worker_id=self.member.worker_id,
            epoch=self.member.epoch,
            role=self.member.role,
            compat_key=self.member.compat_key,
            block_size=max(1, self._info.block_size),
            load=self._load,
            draining=self.member.draining,
            assigned_sequences=assigned.num_sequences,
            assigned_prefill_tokens=assigned.num_prefill_tokens,
            assigned_blocks=assigned.num_blocks,
            num_routed=self._assignments.num_routed,
        )

    def reserve(self, transfer_id: str, assignment: Assignment) -> None:
        """Counts the attempt as load from now on, until reported or released."""
        self._assignments.reserve(transfer_id, assignment)

    def prefill(self, attempt: Attempt, sink: Sink) -> None:
        """Sends a prefill leg. If the session is down, the sink hears WorkerLost at once."""
        request = worker_pb2.SessionRequest(prefill=codec.attempt_to_wire(attempt))
        self._submit(attempt.transfer_id, request, sink)

    def decode(self, attempt: Attempt, handoff: Handoff | None, sink: Sink) -> None:
        """Sends a decode leg; without a handoff the worker computes the prompt itself."""
        decode = worker_pb2.Decode(
            attempt=codec.attempt_to_wire(attempt),
            handoff=codec.handoff_to_wire(handoff) if handoff else None,
        )
        request = worker_pb2.SessionRequest(decode=decode)
        self._submit(attempt.transfer_id, request, sink)

    def cancel(self, transfer_id: str, choices: tuple[int, ...] = ()) -> None:
        """Ends the leg, or only some choices of it. Idempotent."""
        cancel = worker_pb2.Cancel(transfer_id=transfer_id, choices=choices)
        request = worker_pb2.SessionRequest(cancel=cancel)
        if self.connected:
            self._outgoing.put_nowait(request)
            self._forget_heard_cancels()
        self._cancels.append((asyncio.get_running_loop().time(), request))

    def move(self, transfer_id: str) -> None:
        """Asks a decode worker to let go of the leg: Moved follows for each choice. Idempotent."""
        if self.connected:
            move = worker_pb2.Move(transfer_id=transfer_id)
            self._outgoing.put_nowait(worker_pb2.SessionRequest(move=move))

    def release(self, transfer_id: str) -> None:
        """The attempt is over: what still comes for it is dropped. Idempotent."""
        self._sinks.pop(transfer_id, None)
        self._assignments.remove(transfer_id)

    def close(self) -> None:
        """Ends `run`; attempts hear WorkerLost."""
        self._closing.set()

    async def run(self) -> None:
        """Keeps the stream up until `close` or cancellation."""
        backoff_s = self._settings.first_backoff_s
        while not self._closing.is_set():
            served = await self._serve_until_closing()
            backoff_s = self._settings.first_backoff_s if served else backoff_s
            if await self._closed_within(backoff_s):
                return
            backoff_s = min(2 * backoff_s, self._settings.last_backoff_s)

    def _submit(self, transfer_id: str, request: worker_pb2.SessionRequest, sink: Sink) -> None:
        if not self.connected:
            self._tell_lost(transfer_id, sink, "not connected")
            return
        self._sinks[transfer_id] = sink
        self._assignments.sent(transfer_id)
        self._outgoing.put_nowait(request)

    async def _serve_until_closing(self) -> bool:
        """One connection, from hello to its end; whether it ever got a welcome."""
        serving = asyncio.create_task(self._serve())
        closing = asyncio.create_task(self._closing.wait())
        try:
            await asyncio.wait({serving, closing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing.cancel()
            serving.cancel()
            await asyncio.wait({serving, closing})
        return False if serving.cancelled() else serving.result()

    async def _serve(self) -> bool:
        self._outgoing = asyncio.Queue()
        channel = open_channel(self.member.address, self._settings.certificates, CHANNEL_OPTIONS)
        reason, welcomed = "session ended", False
        try:
            async with channel, Silence(self._settings.connect_timeout_s) as worker:
                async for message in worker_pb2_grpc.WorkerStub(channel).Session(self._requests()):
                    if not welcomed:
                        self._welcome(message)
                        welcomed = True
                    worker.heard(self._settings.silence_s)
                    self._deliver(message)
        except TimeoutError:
            reason = "silent for too long" if welcomed else "did not answer"
        except _RefusedError as error:
            reason = str(error)
        except grpc.aio.AioRpcError as error:
            reason = f"{error.code().name}: {error.details()}"
        finally:
            self._lose(reason)
        return welcomed

    async def _requests(self) -> AsyncIterator[worker_pb2.SessionRequest]:
        """Hello, then whatever is queued, until the end of the session.

        gRPC ends this generator only if we end the call; left waiting, it would stay for ever.
        """
        hello = worker_pb2.Hello(
            router_id=self._settings.router_id,
            expected_epoch=self.member.epoch,
            protocol_version=PROTOCOL_VERSION,
        )
        outgoing = self._outgoing
        yield worker_pb2.SessionRequest(hello=hello)
        while (request := await outgoing.get()) is not None:
            yield request

    def _welcome(self, message: worker_pb2.SessionEvent) -> None:
        """Checks that this is the incarnation and the role we were told of."""
        info = message.welcome
        expected = (self.member.worker_id, self.member.epoch, self.member.role.value)
        actual = (info.worker_id, info.epoch, info.role)
        if actual != expected:
            raise _RefusedError(f"expected {expected}, met {actual}")
        if info.protocol_version != PROTOCOL_VERSION:
            raise _RefusedError(f"speaks protocol {info.protocol_version}, not {PROTOCOL_VERSION}")
        self._info = info
        self.num_blocks = info.num_blocks
        self._say_cancels_again()
        self._load = codec.load_from_wire(info.load)
        log.info("connected to %s worker %s", info.role, info.worker_id)
        self._on_change()

    def _deliver(self, message: worker_pb2.SessionEvent) -> None:
        for event in codec.events_from_wire(message):
            if isinstance(event, LoadReport):
                self._take_load(event)
                continue
            if isinstance(event, AttemptFailed) and event.code == "draining":
                self._begin_drain()  # known before it is reported
            sink = self._sinks.get(event.transfer_id)
            # What fails after its request was cancelled or answered is nobody's failure.
            if isinstance(event, AttemptDone) or (sink and isinstance(event, AttemptFailed)):
                self._on_leg_end(self.member.role, event)
            if sink is not None:
                sink(FromLeg(self.member.role, event))

    def _take_load(self, load: LoadReport) -> None:
        if load.draining:
            self._begin_drain()
        self._load = load
        self._assignments.reported()
        self._on_change()

    def _begin_drain(self) -> None:
        """The worker is about to leave: every attempt hears of it, once."""
        if not self._load.draining:
            self._load = replace(self._load, draining=True)
            for transfer_id, sink in self._sinks.items():
                sink(FromLeg(self.member.role, WorkerDraining(transfer_id)))

    def _lose(self, reason: str) -> None:
        """Every attempt hears of it at once; `info` goes first, so that none is sent back here."""
        was_connected, self._info = self.connected, None
        if was_connected:
            self._forget_heard_cancels()
        self._outgoing.put_nowait(None)
        self._load = LoadReport(ready=False)
        self._assignments.clear()
        lost, self._sinks = self._sinks, {}
        if was_connected:
            log.warning("lost worker %s (%s)", self.member.worker_id, reason)
        else:
            level = logging.DEBUG if self._is_unreachable else logging.INFO  # once
            log.log(level, "cannot reach worker %s (%s)", self.member.worker_id, reason)
        self._is_unreachable = not was_connected
        for transfer_id, sink in lost.items():
            self._tell_lost(transfer_id, sink, reason)
        self._on_change()

    def _forget_heard_cancels(self) -> None:
        """Of a stream: had nobody listened since then, silence would have told."""
        heard_before = asyncio.get_running_loop().time() - 2 * self._settings.silence_s
        while self._cancels and self._cancels[0][0] < heard_before:
            self._cancels.popleft()

    def _say_cancels_again(self) -> None:
        now_s = asyncio.get_running_loop().time()
        for index, (_, cancel) in enumerate(self._cancels):
            self._cancels[index] = now_s, cancel
            self._outgoing.put_nowait(cancel)

    def _tell_lost(self, transfer_id: str, sink: Sink, reason: str) -> None:
        worker_id = self.member.worker_id
        message = f"worker {worker_id} was lost: {reason}"
        sink(FromLeg(self.member.role, WorkerLost(transfer_id, worker_id, message)))

    async def _closed_within(self, timeout_s: float) -> bool:
        try:
            async with asyncio.timeout(timeout_s):
                await self._closing.wait()
        except TimeoutError:
            return False
        return True


class _RefusedError(Exception):
    """The peer is not who we were told of."""
