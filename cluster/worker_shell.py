"""One worker: an engine with its role attached, behind gRPC, in one process.

    start   load and warm up > transfers > step loop > bind > announce > heartbeats
    serve   event loop: gRPC, heartbeats.  step-loop thread: everything about blocks and steps
    drain   leave the cluster, take nothing new, finish what is there
    stop    withdraw, end sessions, transfers, the step loop; always within the grace
    fail    a dead step loop ends `wait_failed` with its cause; whoever runs the worker replaces it

An incarnation has a random epoch: whatever is addressed to a former one is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import grpc

from cluster.shell import Progress
from cluster.worker_drain import DrainGate
from cluster.worker_heartbeat import Heartbeat
from cluster.worker_roles import Mailbox, RoleSetup
from cluster.worker_service import WorkerService
from core.clock import MonotonicClock
from core.compat import PROTOCOL_VERSION
from core.config import Config
from core.load import LoadReport
from core.release import RELEASE
from core.request import Phase
from engine.builder import Engine, build_engine
from engine.role import Role
from engine.step_loop import StepLoop
from kv_transfer.backend import make_links
from kv_transfer.channel import server_options
from kv_transfer.link import LinkMaker
from kv_transfer.receiver import Receiver
from kv_transfer.sender import Sender
from prefill_worker.role import WorkerIdentity
from protos import codec, worker_pb2, worker_pb2_grpc
from state.store import Member, Store
from text.hub import resolve
from text.model_card import load_card

log = logging.getLogger(__name__)

_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""A decode message carries a prompt's token ids; gRPC's own limit of 4 MB is too near."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """What `start` made and `stop` ends."""

    engine: Engine
    step_loop: StepLoop
    service: WorkerService
    gate: DrainGate
    server: grpc.aio.Server
    heartbeat: Heartbeat
    links: LinkMaker
    transfers: Sender | Receiver


class WorkerShell:
    """A prefill or decode worker. All methods belong to the event loop that called `start`."""

    def __init__(self, config: Config, role: Phase, worker_id: str, store: Store) -> None:
        self._config = config
        self._role = role
        self._worker_id = worker_id
        self._store = store
        self._epoch = uuid.uuid4().hex
        self._clock = MonotonicClock()
        self._failed: asyncio.Future[None] | None = None
        self._parts: _Parts | None = None
        self._address = ""

    async def start(self, progress: Progress) -> Member:
        """Loads, warms up, binds and announces. Raises ConfigError, StoreUnavailableError."""
        loop = asyncio.get_running_loop()
        self._failed = loop.create_future()
        engine = await asyncio.to_thread(self._build_engine, progress)
        server = self._make_server()
        port = server.add_insecure_port(f"{self._config.worker.host}:{self._config.worker.port}")
        self._address = f"{self._config.worker.host}:{port}"
        self._parts = self._assemble(engine, server, loop)
        self._parts.step_loop.start()
        await server.start()
        member = self._member(engine)
        await self._parts.heartbeat.start(member)
        log.info("ready at %s", self._address)
        return member

    async def drain(self, timeout_s: float) -> int:
        """Leaves the cluster and finishes what is there; returns the attempts that remain."""
        return 0 if self._parts is None else await self._parts.gate.drain(timeout_s)

    async def wait_failed(self) -> None:
        """Returns never while the worker can serve; raises what ended its step loop."""
        assert self._failed is not None, "wait for a worker that was started"
        await asyncio.shield(self._failed)

    async def stop(self, grace_s: float) -> None:
        """Ends everything within `grace_s`, whatever is still running. Idempotent."""
        parts, self._parts = self._parts, None
        if parts is None:
            return
        step_s = grace_s / 4
        await parts.heartbeat.stop()
        parts.service.stop()
        if isinstance(parts.transfers, Sender):
            await asyncio.to_thread(parts.transfers.stop, step_s)
        else:
            await parts.transfers.stop()
        await parts.server.stop(step_s)  # sessions and links have ended their streams by now
        await asyncio.to_thread(parts.step_loop.stop, step_s)
        parts.links.close()

    def _build_engine(self, progress: Progress) -> Engine:
        config = self._config
        card = load_card(resolve(config.model))
        cluster = config.cluster
        num_sharers = cluster.num_prefill_workers + cluster.num_decode_workers
        return build_engine(config, card, num_sharers=num_sharers, progress=progress)

    def _make_server(self) -> grpc.aio.Server:
        options = dict(server_options(self._config.kv_transfer.timeout_s))
        options["grpc.max_receive_message_length"] = _MAX_MESSAGE_BYTES
        options["grpc.max_send_message_length"] = _MAX_MESSAGE_BYTES
        return grpc.aio.server(options=list(options.items()))

    def _assemble(
        self, engine: Engine, server: grpc.aio.Server, loop: asyncio.AbstractEventLoop
    ) -> _Parts:
        """Wires role, transfers, step loop and services; starts nothing but the lease reaper."""
        mailbox = Mailbox()
        links = make_links(
            self._config.kv_transfer.backend, host=self._config.worker.host, device=engine.device
        )
        identity = WorkerIdentity(self._worker_id, self._epoch, self._address, engine.compat_key)
        setup = RoleSetup(self._config, engine, identity, links, self._clock, mailbox)
        role: Role
        transfers: Sender | Receiver
        if self._role is Phase.PREFILL:
            role, transfers = setup.attach_prefill(server)
        else:
            role, transfers = setup.attach_decode(loop)
        step_loop = StepLoop(
            role,
            engine.runner,
            block_size=engine.pool.block_size,
            eos_token_ids=engine.eos_token_ids,
            clock=self._clock,
            publish=lambda events: _call(loop, lambda: service.deliver(events)),
            on_failure=lambda error: _call(loop, lambda: self._fail(error)),
        )
        mailbox.connect(step_loop.post)
        gate = DrainGate(step_loop, lambda: heartbeat.stop())
        load = partial(_load, step_loop, gate, stuck_after_s=self._config.worker.stuck_after_s)
        service = WorkerService(
            lambda: self._describe(engine, load()),
            step_loop,
            engine.pool,
            gate,
            load=load,
            worker=self._config.worker,
        )
        worker_pb2_grpc.add_WorkerServicer_to_server(service, server)
        heartbeat = Heartbeat(self._store, self._config.worker.heartbeat_s)
        return _Parts(engine, step_loop, service, gate, server, heartbeat, links, transfers)

    def _member(self, engine: Engine) -> Member:
        return Member(
            worker_id=self._worker_id,
            epoch=self._epoch,
            role=self._role,
            address=self._address,
            model=engine.card.name,
            compat_key=engine.compat_key,
            tensor_parallel_size=self._config.parallel.tensor_parallel_size,
        )

    def _describe(self, engine: Engine, load: LoadReport) -> worker_pb2.WorkerInfo:
        return worker_pb2.WorkerInfo(
            worker_id=self._worker_id,
            epoch=self._epoch,
            role=self._role.value,
            model=engine.card.name,
            compat_key=engine.compat_key,
            tensor_parallel_size=self._config.parallel.tensor_parallel_size,
            max_model_len=engine.limits.max_model_len,
            num_blocks=engine.pool.num_blocks,
            block_size=engine.pool.block_size,
            protocol_version=PROTOCOL_VERSION,
            release=RELEASE,
            prefill_chunk_tokens=self._config.scheduler.prefill_chunk_tokens,
            pid=os.getpid(),
            load=codec.load_to_wire(load),
        )

    def _fail(self, error: BaseException) -> None:
        if self._failed is not None and not self._failed.done():
            self._failed.set_exception(error)


def _load(step_loop: StepLoop, gate: DrainGate, *, stuck_after_s: float) -> LoadReport:
    """The step loop's load, with what only the shell knows: draining, and whether it is stuck.

    Sessions ask for it until they end, so also while the worker stops.
    """
    report = step_loop.load()
    ready = report.last_step_age_s < stuck_after_s
    return replace(report, draining=gate.draining, ready=ready)


def _call(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    """Runs `action` in the event loop, from any thread; not at all once the loop has closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(action)
