"""One worker: an engine with its role attached, behind gRPC, in the process of its first rank.

    group   (several ranks) a rendezvous, where the others come; this one leads
    start   load and warm up > transfers > step loop > bind > announce > heartbeats
    serve   event loop: gRPC, heartbeats.  step-loop thread: everything about blocks and steps
    drain   leave the cluster, take nothing new, finish what is there or see it move away
    stop    withdraw, end sessions, transfers, the step loop; always within the grace
    fail    a dead step loop ends `wait_ended` with its cause; whoever runs the worker replaces it

An incarnation has a random epoch: whatever is addressed to a former one is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import uuid
from collections.abc import Callable
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2_grpc

from cluster.faulty_executor import FaultyExecutor
from cluster.faulty_store import FaultyStore
from cluster.leg_watch import LegWatch
from cluster.plan import num_ranks, num_sharers
from cluster.rank_shell import group_times
from cluster.shell import Ending, Progress
from cluster.worker_cancels import CancelWatch
from cluster.worker_drain import DrainGate
from cluster.worker_heartbeat import Heartbeat
from cluster.worker_load import LoadReporter
from cluster.worker_meter import make_meter
from cluster.worker_roles import Mailbox, RoleSetup
from cluster.worker_service import WorkerService
from core.clock import MonotonicClock
from core.compat import PROTOCOL_VERSION
from core.config import Config
from core.faults import make_faults
from core.load import LoadReport
from core.release import RELEASE
from core.request import Phase
from core.tracing import NoTracing, Tracing, make_tracing
from decode_worker.ports import KVOps
from engine.builder import Engine, build_engine
from engine.grammar_gate import GrammarGate
from engine.group_runner import GroupRunner
from engine.kv_lender import WorkerIdentity
from engine.machine import select_device
from engine.rank_group import GroupHost, LeaderGroup
from engine.rendezvous import Rendezvous
from engine.role import Role
from engine.step_loop import Executor, StepLoop
from engine.step_meter import MeteredExecutor, StepMeter
from kv_transfer.backend import make_links
from kv_transfer.channel import server_options
from kv_transfer.events import LeaseEnded
from kv_transfer.faulty_link import FaultyLinkMaker
from kv_transfer.link import LinkMaker
from kv_transfer.rank_link import OtherRanks
from kv_transfer.receiver import Receiver
from kv_transfer.sender import Sender
from kv_transfer.stats import TransferStats
from protos import codec, worker_pb2, worker_pb2_grpc
from protos.certificate_files import peer_certificates
from protos.health import Health
from protos.secure_grpc import PeerCertificates, bind_peers, is_loopback
from state.store import Member, Store
from text.hub import resolve
from text.model_card import load_card

log = logging.getLogger(__name__)

_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""A decode message carries a prompt's token ids; gRPC's own limit of 4 MB is too near."""

SERVICE = "tandem-"
"""What traces call this process, before its role."""
LAST_SPANS_S = 2.0
"""For spans that are still to be sent when a worker stops."""

_GROUP_HOST = "127.0.0.1"
"""A group's ranks are on one machine always, and gloo takes whoever connects."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """What `start` made and `stop` ends."""

    engine: Engine
    step_loop: StepLoop
    service: WorkerService
    gate: DrainGate
    server: grpc.aio.Server
    heartbeat: Heartbeat
    health: Health
    links: LinkMaker
    sender: Sender
    receiver: Receiver | None


class WorkerShell:
    """A prefill or decode worker. All methods belong to the event loop that called `start`."""

    def __init__(self, config: Config, role: Phase, worker_id: str, store: Store) -> None:
        self._config = config
        self._role = role
        self._num_ranks = num_ranks(config, role)
        self._worker_id = worker_id
        faults = config.faults
        self._faults = make_faults(faults.spec, seed=faults.seed, worker_id=worker_id)
        self._store = store if self._faults is None else FaultyStore(store, self._faults)
        self._epoch = uuid.uuid4().hex
        self._clock = MonotonicClock()
        self._ended: asyncio.Future[Ending] | None = None
        self._parts: _Parts | None = None
        self._host: GroupHost | None = None
        self._group: LeaderGroup | None = None
        self._address = ""
        self._certificates: PeerCertificates = None
        self._tracing: Tracing = NoTracing()
        self._meter: StepMeter | None = None

    async def open_group(self) -> Rendezvous:
        """Where the other ranks are to come; `start` waits for them."""
        self._host = await asyncio.to_thread(GroupHost, _GROUP_HOST, self._num_ranks)
        return self._host.rendezvous

    async def start(self, progress: Progress) -> Member:
        """Loads, warms up, binds and announces. Raises ConfigError, StoreUnavailableError."""
        loop = asyncio.get_running_loop()
        self._ended = loop.create_future()
        self._certificates = peer_certificates(self._config.tls)
        engine = await asyncio.to_thread(self._build_engine, progress)
        self._meter = await asyncio.to_thread(
            make_meter, self._config, engine, self._num_ranks, self._clock
        )
        self._tracing = make_tracing(
            self._config.observability, service=SERVICE + self._role, instance=self._worker_id
        )
        server = self._make_server()
        host = self._config.worker.host
        port = bind_peers(server, f"{host}:{self._config.worker.port}", self._certificates)
        if self._certificates is None and not is_loopback(host):
            log.warning("worker.host is %s without tls.*: whoever reaches it can read KV", host)
        self._address = f"{host}:{port}"
        self._parts = self._assemble(engine, server, loop)
        if self._group is not None:
            self._group.plans.watch(lambda error: _call(loop, lambda: self._fail(error)))
        self._parts.step_loop.start()
        await server.start()
        member = self._member(engine)
        patience_s = self._config.cluster.start_timeout_s
        await self._parts.heartbeat.start(member, patience_s=patience_s)
        log.info("ready at %s", self._address)
        return member

    async def drain(self, timeout_s: float) -> int:
        """Leaves the cluster and finishes what is there; returns the attempts that remain."""
        return 0 if self._parts is None else await self._parts.gate.drain(timeout_s)

    async def wait_ended(self) -> Ending:
        """Returns once an operator's drain is over; raises what ended its step loop."""
        assert self._ended is not None, "wait for a worker that was started"
        return await asyncio.shield(self._ended)

    async def stop(self, grace_s: float) -> None:
        """Ends everything within `grace_s`, whatever is still running. Idempotent."""
        parts, self._parts = self._parts, None
        if parts is not None:
            await self._stop_parts(parts, grace_s)
        await asyncio.to_thread(self._tracing.close, min(LAST_SPANS_S, grace_s))
        if self._host is not None:
            self._host.close()
        if self._group is not None:
            await asyncio.to_thread(self._group.close)

    async def _stop_parts(self, parts: _Parts, grace_s: float) -> None:
        step_s = grace_s / 4
        await parts.heartbeat.stop()
        parts.service.stop()
        parts.health.stop()
        if parts.receiver is not None:
            await parts.receiver.stop()
        await asyncio.to_thread(parts.sender.stop, step_s)
        await parts.server.stop(step_s)  # sessions and links have ended their streams by now
        await asyncio.to_thread(parts.step_loop.stop, step_s)
        parts.links.close()

    def _build_engine(self, progress: Progress) -> Engine:
        config = self._config
        card = load_card(resolve(config.model))
        if self._host is None:
            return build_engine(config, card, num_sharers=num_sharers(config), progress=progress)
        progress("waiting for the other ranks")
        self._group = group = self._host.lead(group_times(config), select_device())
        engine = build_engine(
            config, card, num_sharers=num_sharers(config), progress=progress, tp=group.tp
        )
        group.enter_service()
        return engine

    def _make_server(self) -> grpc.aio.Server:
        options = dict(server_options(self._config.kv_transfer.timeout_s))
        options["grpc.max_receive_message_length"] = _MAX_MESSAGE_BYTES
        options["grpc.max_send_message_length"] = _MAX_MESSAGE_BYTES
        return grpc.aio.server(options=list(options.items()))

    def _assemble(
        self, engine: Engine, server: grpc.aio.Server, loop: asyncio.AbstractEventLoop
    ) -> _Parts:
        """Wires role, transfers, step loop and services; starts nothing but the lease reaper."""
        mailbox, stats = Mailbox(), TransferStats()
        links: LinkMaker = make_links(
            self._config.kv_transfer.backend,
            host=self._config.worker.host,
            device=engine.device,
            certificates=self._certificates,
        )
        identity = WorkerIdentity(self._worker_id, self._epoch, self._address, engine.compat_key)
        executor: Executor = engine.runner
        kv_ops: KVOps = engine.storage
        if self._group is not None:
            executor = kv_ops = GroupRunner(engine.runner, engine.storage, self._group.plans)
        if self._meter is not None:
            executor = MeteredExecutor(executor, self._meter, self._clock)
        if self._faults is not None:
            links = FaultyLinkMaker(links, self._faults)
            executor = FaultyExecutor(executor, self._faults)
        setup = RoleSetup(
            self._config,
            engine,
            kv_ops,
            identity,
            links,
            self._clock,
            mailbox,
            stats,
            self._faults,
            OtherRanks() if self._group is None else self._group.ranks,
            self._certificates,
        )
        role: Role
        receiver: Receiver | None = None
        if self._role is Phase.PREFILL:
            role, sender = setup.attach_prefill(server)
        else:
            role, receiver, sender = setup.attach_decode(server, loop)
        step_loop = StepLoop(
            role,
            executor,
            block_size=engine.pool.block_size,
            eos_token_ids=engine.eos_token_ids,
            clock=self._clock,
            publish=lambda events: _call(loop, lambda: service.deliver(events)),
            on_failure=lambda error: _call(loop, lambda: self._fail(error)),
        )
        cancels = CancelWatch(step_loop, engine.pool, self._clock)
        legs = LegWatch(
            self._tracing,
            self._role,
            self._worker_id,
            logs_all=self._config.observability.log_requests,
        )
        mailbox.connect(lambda message: _hand_on(message, cancels, legs))
        grammars = GrammarGate(
            engine.grammars,
            lambda submit: step_loop.post(submit),
            lambda refusal: _call(loop, lambda: service.deliver([refusal])),
        )
        gate = DrainGate(step_loop, lambda: heartbeat.stop(), self._retire, grammars)
        stuck_after_s = self._config.worker.stuck_after_s
        load = LoadReporter(step_loop, gate, stats, cancels, stuck_after_s, self._meter).load
        service = WorkerService(
            lambda: self._describe(engine, load()),
            step_loop,
            engine.pool,
            gate,
            cancels,
            grammars,
            legs,
            load=load,
            worker=self._config.worker,
            faults=self._faults,
        )
        worker_pb2_grpc.add_WorkerServicer_to_server(service, server)
        health = Health(lambda: _serves(load()), self._config.worker.load_report_s)
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        heartbeat = Heartbeat(self._store, self._config.worker.heartbeat_s)
        return _Parts(
            engine, step_loop, service, gate, server, heartbeat, health, links, sender, receiver
        )

    def _member(self, engine: Engine) -> Member:
        return Member(
            worker_id=self._worker_id,
            epoch=self._epoch,
            role=self._role,
            address=self._address,
            model=engine.card.name,
            compat_key=engine.compat_key,
            tensor_parallel_size=self._num_ranks,
        )

    def _describe(self, engine: Engine, load: LoadReport) -> worker_pb2.WorkerInfo:
        return worker_pb2.WorkerInfo(
            worker_id=self._worker_id,
            epoch=self._epoch,
            role=self._role.value,
            model=engine.card.name,
            compat_key=engine.compat_key,
            tensor_parallel_size=self._num_ranks,
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
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(error)

    def _retire(self, ending: Ending) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(ending)


def _serves(load: LoadReport) -> bool:
    """What probes call readiness."""
    return load.ready and not load.draining


def _hand_on(message: object, cancels: CancelWatch, legs: LegWatch) -> None:
    """What a transfer has to say, to the step loop and to those who watch."""
    cancels.post(message)
    if isinstance(message, LeaseEnded):
        legs.lease_ended(message)


def _call(loop: asyncio.AbstractEventLoop, action: Callable[[], None]) -> None:
    """Runs `action` in the event loop, from any thread; not at all once the loop has closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(action)
