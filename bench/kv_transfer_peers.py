"""A P and a D without a model, in two processes: real senders, receivers and pools, no step loop.

P   a process of its own, told over a pipe what to offer; its blocks are all computed beforehand
D   here: a thread unpacks what arrives into blocks of its pool, as a step loop does; it chooses
    the kind of links, P waits for all
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import queue
import signal
import threading
import uuid
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any, TypeVar

import grpc.aio
import torch
from tandem_kernels.cpu.library import cpu_library

from bench.kv_transfer import LINK_KINDS, LinkKind
from bench.kv_transfer_raw import Messages, RawLink
from core.clock import MonotonicClock
from core.config import TransferConfig
from core.errors import TransferError
from core.handoff import Handoff
from core.kv_spec import KVSpec
from kv_cache.storage import KVStorage
from kv_transfer.backend import make_links
from kv_transfer.channel import server_options
from kv_transfer.events import BlocksArrived, FirstToken, PullEvent, PullFailed
from kv_transfer.link import LinkMaker
from kv_transfer.receiver import Receiver
from kv_transfer.sender import Sender
from kv_transfer.service import KvTransferService
from kv_transfer.staging import BlockFormat
from kv_transfer.stats import TransferStats
from kv_transfer.wire import LinkIdentity
from protos.kv_transfer_pb2_grpc import add_KvTransferServicer_to_server

HOST = "127.0.0.1"
PATIENCE_S = 60.0
"""Of waits for the other process; only a broken measurement waits so long."""
_COMPAT_KEY = "bench"
_FIRST_TOKENS = (FirstToken(0, 0, False),)

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """What both sides are made of."""

    spec: KVSpec
    num_blocks: int
    transfer: TransferConfig
    num_threads: int

    @property
    def heads_by_rank(self) -> tuple[tuple[int, ...], ...]:
        return (tuple(range(self.spec.groups[0].num_kv_heads)),)


@dataclass(frozen=True, slots=True)
class Address:
    """Where D finds P: its gRPC port for each kind of links, and the store where raw links meet."""

    epoch: str
    grpc_ports: Mapping[LinkKind, int]
    store_port: int


@dataclass(frozen=True, slots=True)
class Offer:
    """P offers its leading blocks. `computed`: grants and closes them too."""

    transfer_id: str
    num_blocks: int
    computed: bool = True


class LoopThread:
    """An event loop in a thread of its own, as every worker process has one."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(PATIENCE_S)

    def stop(self) -> None:
        self.run(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(PATIENCE_S)
        self.loop.close()


class PrefillProcess:
    """P, seen from D's process. Use it as a context: it is killed at the end."""

    def __init__(self, settings: PeerSettings) -> None:
        context = multiprocessing.get_context("spawn")
        self._commands, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, settings), daemon=True)
        self.process.start()
        theirs.close()
        self._answer()
        self.address: Address = self._commands.recv()

    def __enter__(self) -> PrefillProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.join(PATIENCE_S)
        self._commands.close()

    def offer(self, kind: LinkKind, num_blocks: int, *, computed: bool = True) -> Handoff:
        """The receipt of a prompt of so many blocks, to be pulled over this kind of links."""
        transfer_id = uuid.uuid4().hex
        self.say(Offer(transfer_id, num_blocks, computed))
        self._answer()
        self._commands.recv()
        return Handoff(
            transfer_id=transfer_id,
            worker_id="prefill-0",
            epoch=self.address.epoch,
            address=f"{HOST}:{self.address.grpc_ports[kind]}",
            compat_key=_COMPAT_KEY,
            num_tokens=num_blocks,
            first_block=0,
            num_blocks=num_blocks,
            lease_s=PATIENCE_S,
        )

    def signal(self, number: signal.Signals) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def say(self, command: Offer | Messages) -> None:
        """An offer is answered; messages are sent over the raw link once D says go."""
        self._commands.send(command)

    def _answer(self) -> None:
        if not self._commands.poll(PATIENCE_S):
            raise TransferError("the prefill process says nothing", reason="timeout")


def _serve(commands: Connection, settings: PeerSettings) -> None:
    """The whole life of P's process, which ends when it is killed or D's is gone."""
    use_threads(settings.num_threads)
    config, clock, stats = settings.transfer, MonotonicClock(), TransferStats()
    storage = filled_storage(settings)
    makers = {kind: make_links(kind, host=HOST, device="cpu") for kind in LINK_KINDS}
    sender = Sender(
        lease_s=config.lease_s,
        overlap=config.overlap,
        clock=clock,
        on_event=lambda _: None,
        stats=stats,
    )
    epoch = uuid.uuid4().hex
    identity = LinkIdentity("prefill-0", epoch, _COMPAT_KEY, settings.heads_by_rank)

    async def listen(maker: LinkMaker) -> int:
        server = grpc.aio.server(options=server_options(config.timeout_s))
        service = KvTransferService(identity, sender, storage, maker, config, stats)
        add_KvTransferServicer_to_server(service, server)
        port = server.add_insecure_port(f"{HOST}:0")
        await server.start()
        servers.append(server)
        return port

    servers: list[grpc.aio.Server] = []
    loop = LoopThread()
    ports = {kind: loop.run(listen(maker)) for kind, maker in makers.items()}
    store_port = makers["gloo"].host().port
    commands.send(Address(epoch, ports, store_port))
    raw: RawLink | None = None
    while True:
        try:
            command = commands.recv()
        except EOFError:
            return
        if isinstance(command, Messages):
            raw = raw or RawLink(HOST, store_port, 0, timeout_s=PATIENCE_S)
            raw.send(command)
            continue
        sender.offer(
            command.transfer_id,
            num_blocks=command.num_blocks,
            first_block=0,
            deadline=clock.now() + PATIENCE_S,
        )
        if command.computed:
            sender.grant(command.transfer_id, 0, range(command.num_blocks))
            sender.close(command.transfer_id, _FIRST_TOKENS)
        commands.send(None)


class DecodeSide:
    """D in this process. `pull` is a whole transfer; use it as a context."""

    def __init__(self, settings: PeerSettings, kind: LinkKind) -> None:
        use_threads(settings.num_threads)
        self._settings = settings
        self.kind: LinkKind = kind
        self.storage = filled_storage(settings)
        self.stats = TransferStats()
        self._inbox: queue.SimpleQueue[PullEvent | None] = queue.SimpleQueue()
        self._ended: queue.SimpleQueue[PullEvent] = queue.SimpleQueue()
        self._loop = LoopThread()
        self._receiver = self._make_receiver()
        self._unpacking = threading.Thread(target=self._unpack, daemon=True)
        self._unpacking.start()

    def __enter__(self) -> DecodeSide:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._loop.run(self._receiver.stop())
        self._inbox.put(None)
        self._unpacking.join(PATIENCE_S)
        self._loop.stop()

    def pull(self, handoff: Handoff) -> None:
        """Returns when all blocks are in the pool. Raises TransferError."""
        self.begin(handoff)
        ended = self.end()
        if isinstance(ended, PullFailed):
            raise TransferError(ended.message, reason=ended.reason)

    def begin(self, handoff: Handoff) -> None:
        """Asks for the blocks, and returns at once."""
        self._receiver.pull(handoff, 0)

    def end(self, within_s: float = PATIENCE_S) -> PullEvent:
        """What the next pull to end ended with. Raises TransferError if none does in time."""
        try:
            return self._ended.get(timeout=within_s)
        except queue.Empty:
            raise TransferError("a pull never ended", reason="timeout") from None

    def forget_links(self) -> None:
        """The next pull makes a link of its own."""
        self._loop.run(self._receiver.stop())
        self._receiver = self._make_receiver()

    def _make_receiver(self) -> Receiver:
        identity = LinkIdentity(
            "decode-0", uuid.uuid4().hex, _COMPAT_KEY, self._settings.heads_by_rank
        )
        return Receiver(
            identity,
            BlockFormat.of(self.storage),
            make_links(self.kind, host=HOST, device="cpu"),
            self._settings.transfer,
            loop=self._loop.loop,
            clock=MonotonicClock(),
            on_event=self._inbox.put,
            stats=self.stats,
        )

    def _unpack(self) -> None:
        while (event := self._inbox.get()) is not None:
            if isinstance(event, BlocksArrived):
                blocks = range(event.first_block, event.first_block + event.num_blocks)
                self.storage.unpack(blocks, event.staging)
                event.release()
            else:
                self._ended.put(event)


def use_threads(number: int) -> None:
    """As many compute threads as a worker with `parallel.num_threads` has."""
    torch.set_num_threads(number)
    library = cpu_library()
    if library is not None:
        library.tandem_set_num_threads(number)


def filled_storage(settings: PeerSettings) -> KVStorage:
    """A pool whose memory has all been written, as after some time of service."""
    storage, blocks = KVStorage(settings.spec, settings.num_blocks), range(settings.num_blocks)
    for block in blocks:
        shape = (1, *BlockFormat.of(storage).shape(storage.num_kv_heads))
        storage.unpack([block], torch.full(shape, block % 251, dtype=torch.uint8))
    return storage
