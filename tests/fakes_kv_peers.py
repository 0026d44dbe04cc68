"""Both ends of KV transfers for tests: real but for the step loops, which are inboxes to read."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine
from multiprocessing.connection import Connection
from typing import Any, TypeVar

import grpc.aio
import torch
from fakes_kv_links import link_maker
from fakes_kv_ranks import RankThreads

from core.clock import MonotonicClock
from core.config import TransferConfig
from core.faults import Faults
from core.handoff import Handoff
from core.kv_spec import KVGroup, KVSpec
from kv_cache.storage import KVStorage
from kv_transfer.channel import server_options
from kv_transfer.events import BlocksArrived, FirstToken, PullClosed, PullFailed
from kv_transfer.link import LinkMaker
from kv_transfer.receiver import Receiver
from kv_transfer.sender import Sender
from kv_transfer.service import KvTransferService
from kv_transfer.staging import BlockFormat
from kv_transfer.stats import TransferStats
from kv_transfer.wire import LinkIdentity
from protos.kv_transfer_pb2_grpc import add_KvTransferServicer_to_server

SPEC = KVSpec((KVGroup(num_layers=3, num_kv_heads=2, head_dim=4),), block_size=4, dtype="float32")
NUM_BLOCKS = 64
HEADS = ((0, 1),)
LONG_S = 60.0
"""Deadline of what must happen; only a broken test waits for it."""

E = TypeVar("E")
R = TypeVar("R")


def random_storage(seed: int, spec: KVSpec = SPEC) -> KVStorage:
    """Bytes of any value: transfers don't look at them."""
    storage, every_block = KVStorage(spec, NUM_BLOCKS), range(NUM_BLOCKS)
    shape = storage.pack(every_block).shape
    generator = torch.Generator().manual_seed(seed)
    random = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    storage.unpack(every_block, random)
    return storage


def transfer_config(**changes: Any) -> TransferConfig:
    """Three blocks in a message, two messages under way, a patient clock."""
    block_bytes = SPEC.bytes_per_block
    defaults = {"max_message_bytes": 3 * block_bytes + 1, "max_inflight_messages": 2}
    return TransferConfig(**{**defaults, "timeout_s": 20.0, **changes})


class Inbox:
    """Events in order of their arrival."""

    def __init__(self) -> None:
        self._events: queue.Queue[object] = queue.Queue()

    def post(self, event: object) -> None:
        self._events.put(event)

    def take(self, kind: type[E], timeout_s: float = LONG_S) -> E:
        """The next event. Raises queue.Empty."""
        event = self._events.get(timeout=timeout_s)
        assert isinstance(event, kind), f"expected {kind.__name__}, got {event}"
        return event

    def is_empty(self) -> bool:
        return self._events.empty()


class _LoopThread:
    """An event loop in a thread of its own, as every worker process has one."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(LONG_S)

    def stop(self) -> None:
        self.run(self.loop.shutdown_default_executor())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(LONG_S)
        self.loop.close()


class PrefillPeer:
    """P without a model: its KV is random, the test is its step loop."""

    def __init__(
        self,
        maker: LinkMaker,
        config: TransferConfig,
        *,
        epoch: str = "p1",
        port: int = 0,
        seed: int = 1,
        spec: KVSpec = SPEC,
        post: Callable[[object], None] | None = None,
        faults: Faults | None = None,
        group: RankThreads | None = None,
    ) -> None:
        self.inbox = Inbox()
        self.storage = group.storages[0] if group else random_storage(seed, spec)
        self._group = group
        self.stats = TransferStats()
        self.config = config
        self.clock = MonotonicClock()
        self._epoch = epoch
        self._maker = maker
        self._faults = faults
        self.sender = Sender(
            lease_s=config.lease_s,
            overlap=config.overlap,
            clock=self.clock,
            on_event=post or self.inbox.post,
            stats=self.stats,
        )
        self._thread = _LoopThread()
        self.port = self._thread.run(self._serve(port))

    @property
    def identity(self) -> LinkIdentity:
        heads = self._group.heads if self._group else HEADS
        return LinkIdentity("prefill-0", self._epoch, "compat", heads)

    async def _serve(self, port: int) -> int:
        self._server = grpc.aio.server(options=server_options(self.config.timeout_s))
        service = KvTransferService(
            self.identity,
            self.sender,
            self.storage,
            self._maker,
            self.config,
            self.stats,
            self._faults,
            self._group.ranks if self._group else None,
        )
        add_KvTransferServicer_to_server(service, self._server)
        bound = self._server.add_insecure_port(f"127.0.0.1:{port}")
        await self._server.start()
        return bound

    def offer(self, transfer_id: str, num_blocks: int, *, first_block: int = 0) -> Handoff:
        self.sender.offer(
            transfer_id,
            num_blocks=num_blocks,
            first_block=first_block,
            deadline=self.clock.now() + LONG_S,
        )
        return self.handoff(transfer_id, num_blocks, first_block=first_block)

    def handoff(self, transfer_id: str, num_blocks: int, *, first_block: int = 0) -> Handoff:
        return handoff(self.port, self._epoch, transfer_id, num_blocks, first_block=first_block)

    def stop(self) -> None:
        self.sender.stop(LONG_S)
        self._thread.run(self._server.stop(LONG_S))
        self._maker.close()
        self._thread.stop()


def handoff(
    port: int, epoch: str, transfer_id: str, num_blocks: int, *, first_block: int = 0
) -> Handoff:
    return Handoff(
        transfer_id=transfer_id,
        worker_id="prefill-0",
        epoch=epoch,
        address=f"127.0.0.1:{port}",
        compat_key="compat",
        num_tokens=num_blocks * SPEC.block_size,
        first_block=first_block,
        num_blocks=num_blocks,
        lease_s=30.0,
    )


class DecodePeer:
    """D without a model: it unpacks what arrives into blocks of its own."""

    def __init__(
        self,
        maker: LinkMaker,
        config: TransferConfig,
        *,
        compat_key: str = "compat",
        spec: KVSpec = SPEC,
        faults: Faults | None = None,
        group: RankThreads | None = None,
    ) -> None:
        self.inbox = Inbox()
        self.storage = group.storages[0] if group else KVStorage(spec, NUM_BLOCKS)
        self.stats = TransferStats()
        self._maker = maker
        self._thread = _LoopThread()
        self.receiver = Receiver(
            LinkIdentity("decode-0", "d1", compat_key, group.heads if group else HEADS),
            BlockFormat.of(self.storage),
            maker,
            config,
            loop=self._thread.loop,
            clock=MonotonicClock(),
            on_event=self.inbox.post,
            stats=self.stats,
            faults=faults,
            ranks=group.ranks if group else None,
        )

    def receive(self, blocks: list[int]) -> PullClosed:
        """Unpacks the only open pull into `blocks`, one for each block of the prompt."""
        arrived: set[str] = set()
        while True:
            event = self.inbox.take(object)
            if isinstance(event, PullClosed):
                assert arrived <= {event.transfer_id}, "blocks of another transfer"
                return event
            assert isinstance(event, BlocksArrived), event
            arrived.add(event.transfer_id)
            self.unpack(event, blocks)

    def unpack(self, event: BlocksArrived, blocks: list[int]) -> None:
        targets = blocks[event.first_block : event.first_block + event.num_blocks]
        event.others_unpack(targets)
        self.storage.unpack(targets, event.staging)
        event.release()

    def fail(self) -> PullFailed:
        """The failure of the only open pull; what arrives before it is thrown away."""
        while True:
            event = self.inbox.take(object)
            if isinstance(event, PullFailed):
                return event
            assert isinstance(event, BlocksArrived), event
            event.release()

    def stop_receiving(self) -> None:
        self._thread.run(self.receiver.stop())

    def stop(self) -> None:
        self.stop_receiving()
        self._thread.stop()


def serve_prefill(
    commands: Connection, kind: str, port: int, epoch: str, seed: int, timeout_s: float
) -> None:
    """A P process: says its port, then obeys (method, arguments) until told None."""
    torch.set_num_threads(1)
    config = transfer_config(timeout_s=timeout_s)
    peer = PrefillPeer(link_maker(kind), config, epoch=epoch, port=port, seed=seed)
    commands.send(peer.port)
    while (command := commands.recv()) is not None:
        method, arguments = command
        target = peer.offer if method == "offer" else getattr(peer.sender, method)
        target(*arguments)
        commands.send(None)
    peer.stop()


FIRST_TOKENS = (FirstToken(0, 7, False), FirstToken(1, 9, True))
