"""D's side of all transfers: pulls asked for by the step loop, on links made when first needed.

    pull    the link to that incarnation of P, or a new one > Pull on it
    abort   the pull is forgotten at once; what is under way for it is thrown away
    link    one for each (P worker, epoch); dead ones are dropped, live ones stay for the next pull

`on_event` gets BlocksArrived, PullClosed, PullNeedless and PullFailed. It is called under a lock of
ours: it may only enqueue. An event that was enqueued before `abort` is still in the step loop's
inbox after it.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import Future

from core.clock import Clock
from core.config import TransferConfig
from core.faults import Faults
from core.handoff import Handoff
from kv_transfer.events import PullEvent
from kv_transfer.link import LinkMaker
from kv_transfer.pull_registry import PullRegistry
from kv_transfer.rank_link import OtherRanks
from kv_transfer.receiver_link import ReceiverLink
from kv_transfer.staging import BlockFormat
from kv_transfer.stats import TransferStats
from kv_transfer.wire import LinkIdentity
from protos import kv_transfer_pb2 as pb
from protos.secure_grpc import PeerCertificates

_Incarnation = tuple[str, str]
"""Worker id and epoch of a P."""


class Receiver:
    """The pulls of one D worker. `pull` and `abort` return at once and may come from any thread."""

    def __init__(
        self,
        identity: LinkIdentity,
        block_format: BlockFormat,
        maker: LinkMaker,
        config: TransferConfig,
        *,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        on_event: Callable[[PullEvent], None],
        stats: TransferStats,
        faults: Faults | None = None,
        ranks: OtherRanks | None = None,
        certificates: PeerCertificates = None,
    ) -> None:
        self._identity = identity
        self._format = block_format
        self._maker = maker
        self._config = config
        self._loop = loop
        self._clock = clock
        self._stats = stats
        self._faults = faults
        self._certificates = certificates
        self._ranks = ranks or OtherRanks()
        self._registry = PullRegistry(clock, on_event, stats)
        self._lock = threading.Lock()
        self._links: dict[_Incarnation, ReceiverLink] = {}
        self._running: dict[str, Future[None]] = {}
        self._stopping = False

    def pull(self, handoff: Handoff, num_held_blocks: int) -> None:
        """Asks for a prompt's blocks but the leading `num_held_blocks`, which D has.

        Ends in exactly one PullClosed, PullNeedless or PullFailed, unless aborted. An id is pulled
        once.
        """
        request = pb.Pull(transfer_id=handoff.transfer_id, num_held_blocks=num_held_blocks)
        with self._lock:
            if self._stopping:
                self._registry.refuse(handoff.transfer_id, "aborted", "D is stopping")
                return
            incarnation = (handoff.worker_id, handoff.epoch)
            link = self._links.get(incarnation)
            if link is None or not self._registry.open(handoff.transfer_id, link.link_id):
                link = self._links[incarnation] = self._make_link(handoff)
                opened = self._registry.open(handoff.transfer_id, link.link_id)
                assert opened, "a new link is alive"
            link.ask(pb.LinkRequest(pull=request))
            self._start(incarnation, link)

    def abort(self, transfer_id: str) -> None:
        """Gives a pull up: no event for it is enqueued any more. Idempotent."""
        with self._lock:
            link_id = self._registry.abort(transfer_id)
            for link in self._links.values():
                if link.link_id == link_id:
                    link.ask(pb.LinkRequest(abort=pb.Abort(transfer_id=transfer_id)))

    async def stop(self) -> None:
        """Fails what is still pulled and ends all links; call it in the event loop."""
        with self._lock:
            self._stopping = True
            links, running = list(self._links.values()), list(self._running.values())
        for link in links:
            link.fail("aborted", "D is stopping")
        await asyncio.gather(*(asyncio.wrap_future(future) for future in running))

    def _make_link(self, handoff: Handoff) -> ReceiverLink:
        link_id = uuid.uuid4().hex
        self._registry.add_link(link_id)
        return ReceiverLink(
            link_id,
            handoff.address,
            handoff.epoch,
            identity=self._identity,
            block_format=self._format,
            config=self._config,
            maker=self._maker,
            registry=self._registry,
            loop=self._loop,
            clock=self._clock,
            stats=self._stats,
            ranks=self._ranks,
            faults=self._faults,
            certificates=self._certificates,
        )

    def _start(self, incarnation: _Incarnation, link: ReceiverLink) -> None:
        """Runs a new link in the event loop."""
        if link.link_id not in self._running:
            running = asyncio.run_coroutine_threadsafe(self._run(incarnation, link), self._loop)
            self._running[link.link_id] = running

    async def _run(self, incarnation: _Incarnation, link: ReceiverLink) -> None:
        try:
            await link.run()
        finally:
            with self._lock:
                self._running.pop(link.link_id, None)
                if self._links.get(incarnation) is link:
                    del self._links[incarnation]
