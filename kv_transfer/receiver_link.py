"""D's end of the link to one P: the control conversation, and the thread that receives.

run        in the event loop: dial, hello, welcome; start the thread; then every event as it comes
thread     make the data links of all ranks, within timeout_s; receive until stopped
fail       refused, silent for timeout_s, stream or data link broken, or D stops: every pull on
           the link fails once, both halves end, and the next pull makes another link

Other ranks receive their shares in threads of their own (rank_share.py), driven by this one.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Sequence
from functools import partial

import grpc.aio

from core.clock import Clock
from core.config import TransferConfig
from core.errors import TransferError
from core.faults import Faults
from core.silence import Silence
from kv_transfer import wire
from kv_transfer.arrivals import Announced, AnnouncedClose, Arrivals
from kv_transfer.channel import channel_options
from kv_transfer.events import FINISHED
from kv_transfer.faulty_stream import faulty_stream
from kv_transfer.lanes import Lanes
from kv_transfer.layout import plan_routes
from kv_transfer.link import DataLink, LinkMaker, Rendezvous
from kv_transfer.link_plan import LinkPlan, lane_name
from kv_transfer.outbox import Outbox
from kv_transfer.pull_registry import PullRegistry
from kv_transfer.rank_link import OtherRanks, RankLink
from kv_transfer.rank_orders import OpenLanes
from kv_transfer.staging import BlockFormat, Staging, StagingLimits
from kv_transfer.stats import TransferStats
from kv_transfer.wire import LinkIdentity
from protos import kv_transfer_pb2 as pb
from protos.kv_transfer_pb2_grpc import KvTransferStub
from protos.secure_grpc import PeerCertificates, open_channel

_LOG = logging.getLogger(__name__)


class ReceiverLink:
    """One P's link. `ask` and `fail` return at once and may be called from any thread."""

    def __init__(
        self,
        link_id: str,
        address: str,
        prefill_epoch: str,
        *,
        identity: LinkIdentity,
        block_format: BlockFormat,
        config: TransferConfig,
        maker: LinkMaker,
        registry: PullRegistry,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        stats: TransferStats,
        ranks: OtherRanks,
        faults: Faults | None = None,
        certificates: PeerCertificates = None,
    ) -> None:
        self.link_id = link_id
        self._address = address
        self._identity = identity
        self._format = block_format
        self._timeout_s = config.timeout_s
        self._maker = maker
        self._registry = registry
        self._loop = loop
        self._clock = clock
        self._stats = stats
        self._ranks = ranks
        self._faults = faults
        self._certificates = certificates
        heartbeat = pb.LinkRequest(heartbeat=pb.Heartbeat())
        self._outbox = Outbox(loop, heartbeat=heartbeat, timeout_s=config.timeout_s)
        self._ended = asyncio.Event()
        self._lock = threading.Lock()
        self._failed = False
        self._thread: threading.Thread | None = None
        self._arrivals: Arrivals | None = None
        self._lanes = Lanes()
        self._others: list[RankLink] = []
        limits = StagingLimits(config.max_message_bytes, config.max_inflight_messages)
        self.ask(
            wire.hello(link_id, identity, limits, prefill_epoch=prefill_epoch, verify=config.verify)
        )

    def ask(self, request: pb.LinkRequest) -> None:
        self._outbox.put(request)

    async def run(self) -> None:
        """Keeps the link until it fails; returns when both halves have ended."""
        options = channel_options(self._timeout_s)
        try:
            async with open_channel(self._address, self._certificates, options) as channel:
                call = KvTransferStub(channel).Link(self._requests())
                talk = asyncio.create_task(self._converse(call))
                ended = asyncio.create_task(self._ended.wait())
                await asyncio.wait((talk, ended), return_when=asyncio.FIRST_COMPLETED)
                talk.cancel()
                ended.cancel()
                await asyncio.gather(talk, ended, return_exceptions=True)
        finally:
            self.fail("aborted", "D is stopping")
            if self._thread is not None:
                await asyncio.to_thread(self._thread.join, self._timeout_s)

    def fail(self, reason: str, message: str) -> None:
        """Ends the link and every pull on it. Idempotent; the first reason counts."""
        with self._lock:
            if self._failed:
                return
            self._failed = True
            others, arrivals = list(self._others), self._arrivals
        _LOG.info("KV link %s to %s ended (%s): %s", self.link_id, self._address, reason, message)
        self._registry.fail_link(self.link_id, reason, message)
        self._outbox.close()
        if arrivals is not None:
            arrivals.stop()
        self._lanes.abort()
        for other in others:
            other.wake()
        self._loop.call_soon_threadsafe(self._ended.set)

    async def _requests(self) -> AsyncIterator[pb.LinkRequest]:
        async for requests in faulty_stream(self._outbox.stream(), self._faults):
            for request in requests:
                yield request

    async def _converse(
        self, call: grpc.aio.StreamStreamCall[pb.LinkRequest, pb.LinkEvents]
    ) -> None:
        said = aiter(call)
        try:
            async with Silence(self._timeout_s) as peer:
                while True:
                    for event in (await anext(said)).events:
                        self._take(event)
                    peer.heard()
        except StopAsyncIteration:
            self.fail("peer_lost", "P closed the link")
        except grpc.aio.AioRpcError as error:
            self.fail("peer_lost", f"{error.code().name}: {error.details()}")
        except TimeoutError:
            self.fail("timeout", f"P was silent for {self._timeout_s} s")
        except TransferError as error:
            self.fail(error.reason, error.message)

    def _take(self, event: pb.LinkEvent) -> None:
        match event.WhichOneof("kind"):
            case "welcome":
                self._start(event.welcome)
            case "message":
                m = event.message
                self._expect(
                    Announced(
                        m.seq,
                        m.transfer_id,
                        m.first_block,
                        m.num_blocks,
                        m.size_bytes,
                        tuple(m.checksums),
                    )
                )
            case "close":
                ended_at = self._clock.now() - event.close.chunk_end_age_s
                tokens = wire.first_tokens(event.close)
                self._expect(AnnouncedClose(event.close.transfer_id, tokens, ended_at))
            case "refused":
                self._refused(event.refused)

    def _refused(self, refused: pb.Refused) -> None:
        if not refused.transfer_id:
            raise TransferError(refused.message, reason=refused.reason)
        if refused.reason == FINISHED:
            self._registry.needless(self.link_id, refused.transfer_id)
            return
        self._registry.failed(self.link_id, refused.transfer_id, refused.reason, refused.message)

    def _expect(self, item: Announced | AnnouncedClose) -> None:
        if self._arrivals is None:
            raise TransferError("P announced a message before its welcome", reason="corrupt")
        self._arrivals.expect(item)

    def _start(self, welcome: pb.LinkWelcome) -> None:
        """Both sides know each other: the thread makes the data links and receives."""
        routes = plan_routes(wire.heads(welcome.prefill_heads), self._identity.heads_by_rank)
        plan = LinkPlan.of(routes, self._format, wire.limits(welcome))
        arrivals = Arrivals(
            self.link_id,
            self._registry,
            plan,
            acknowledge=self._acknowledge,
            give_up=self._give_up,
            others_unpack=partial(self._ranks.unpack, self.link_id),
            timeout_s=self._timeout_s,
            clock=self._clock,
            stats=self._stats,
        )
        hosts, token = wire.hosts(welcome), welcome.token
        if len(hosts) != len(welcome.prefill_heads):
            raise TransferError("P does not say where all its ranks wait", reason="corrupt")
        peers = [hosts[route.prefill_rank] for route in routes]
        with self._lock:
            self._arrivals = arrivals
            if self._failed:
                return
            self._thread = threading.Thread(
                target=self._receive,
                args=(arrivals, peers, token, plan),
                name="tandem-kv-receive",
                daemon=True,
            )
            self._thread.start()

    def _acknowledge(self, seq: int) -> None:
        self.ask(pb.LinkRequest(ack=pb.Ack(seq=seq)))

    def _give_up(self, transfer_id: str) -> None:
        self.ask(pb.LinkRequest(abort=pb.Abort(transfer_id=transfer_id)))

    def _receive(
        self, arrivals: Arrivals, peers: Sequence[Rendezvous], token: str, plan: LinkPlan
    ) -> None:
        """`peers`: where the P rank of each data link waits, in order of their numbers."""
        try:
            self._connect(peers, token, plan)
            lanes = list(self._lanes)
            whole = None
            if len(lanes) > 1:
                num_heads, backend = self._format.num_kv_heads, peers[0].backend
                whole = Staging(self._format, plan.size, num_heads=num_heads, backend=backend)
            arrivals.run(lanes, whole, self._others)
        except TransferError as error:
            self.fail(error.reason, error.message)
        finally:
            self.fail("peer_lost", "the receiving thread ended")
            self._lanes.close()
            for other in self._others:
                other.abort()
            arrivals.when_released(self._forget)

    def _connect(self, peers: Sequence[Rendezvous], token: str, plan: LinkPlan) -> None:
        for rank in self._ranks.numbers:
            specs = plan.decode_lanes(rank)
            order = OpenLanes(
                self.link_id,
                token,
                sends=False,
                lanes=specs,
                peers=tuple(peers[spec.index] for spec in specs),
                num_slots=plan.size.num_slots,
                blocks_per_slot=plan.size.num_blocks,
                timeout_s=self._timeout_s,
                verify=False,  # each order says what is to be verified
            )
            self._add(self._ranks.open(rank, order))

        def dial(index: int) -> DataLink:
            name = lane_name(self.link_id, token, index)
            return self._maker.dial(peers[index], name, self._timeout_s)

        self._lanes.connect(
            plan.decode_lanes(0),
            dial,
            self._format,
            plan.size,
            backend=peers[0].backend,
            timeout_s=self._timeout_s,
        )
        for other in self._others:
            other.opened()

    def _add(self, other: RankLink) -> None:
        with self._lock:
            self._others.append(other)
            if self._failed:
                raise TransferError("the link closed while it was made", reason="peer_lost")

    def _forget(self) -> None:
        for other in self._others:
            other.forget()
