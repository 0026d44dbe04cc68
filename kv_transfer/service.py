"""The gRPC service through which D opens links to P; runs in P's event loop.

hello   another epoch, protocol, compat key or head layout: refused, and the stream ends
welcome the link's token, where its data links meet, and the limits of both sides
then    requests to the link's thread as they come, its events out as they come
end     either direction ending, or D silent for timeout_s, ends the link
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from functools import partial

from core.compat import PROTOCOL_VERSION
from core.config import TransferConfig
from core.errors import TransferError
from core.faults import Faults
from core.silence import Silence
from kv_cache.storage import KVStorage
from kv_transfer import wire
from kv_transfer.faulty_stream import faulty_stream
from kv_transfer.layout import plan_routes
from kv_transfer.link import LinkMaker
from kv_transfer.link_plan import LinkPlan
from kv_transfer.outbox import Outbox
from kv_transfer.rank_link import OtherRanks
from kv_transfer.sender import Sender
from kv_transfer.sender_link import SenderLink
from kv_transfer.staging import BlockFormat, StagingLimits
from kv_transfer.stats import TransferStats
from kv_transfer.wire import LinkIdentity
from protos import kv_transfer_pb2 as pb
from protos.kv_transfer_pb2_grpc import KvTransferServicer

_TOKEN_BYTES = 32


class KvTransferService(KvTransferServicer):
    """Serves `KvTransfer.Link` for one P worker, in the process of its leader."""

    def __init__(
        self,
        identity: LinkIdentity,
        sender: Sender,
        storage: KVStorage,
        maker: LinkMaker,
        config: TransferConfig,
        stats: TransferStats,
        faults: Faults | None = None,
        ranks: OtherRanks | None = None,
    ) -> None:
        self._identity = identity
        self._sender = sender
        self._storage = storage
        self._maker = maker
        self._config = config
        self._stats = stats
        self._faults = faults
        self._ranks = ranks

    async def Link(
        self, request_iterator: AsyncIterator[pb.LinkRequest], context: object
    ) -> AsyncIterator[pb.LinkEvents]:
        try:
            hello = await self._hello(request_iterator)
            limits = wire.limits(hello).smaller(
                StagingLimits(self._config.max_message_bytes, self._config.max_inflight_messages)
            )
            outbox = self._outbox()
            link = self._make_link(hello, limits, outbox)
            link.start()
        except TransferError as error:
            self._stats.failed(error.reason)
            yield pb.LinkEvents(events=[wire.refused("", error.reason, error.message)])
            return
        reader = asyncio.create_task(self._read(request_iterator, link))
        try:
            async for events in faulty_stream(outbox.stream(), self._faults):
                yield pb.LinkEvents(events=events)
        finally:
            link.fail("peer_lost", "the control stream ended")
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)
            await asyncio.to_thread(link.join, self._config.timeout_s)

    async def _hello(self, requests: AsyncIterator[pb.LinkRequest]) -> pb.LinkHello:
        """The stream's first message, if we may be linked to whoever sends it."""
        try:
            async with asyncio.timeout(self._config.timeout_s):
                request = await anext(requests)
        except (TimeoutError, StopAsyncIteration):
            raise TransferError("no hello on a new link", reason="timeout") from None
        if request.WhichOneof("kind") != "hello":
            raise TransferError("a link begins with hello", reason="corrupt")
        refuse(request.hello, self._identity)
        return request.hello

    def _make_link(
        self, hello: pb.LinkHello, limits: StagingLimits, outbox: Outbox[pb.LinkEvent]
    ) -> SenderLink:
        routes = plan_routes(self._identity.heads_by_rank, wire.heads(hello.decode_heads))
        token = secrets.token_hex(_TOKEN_BYTES)
        return SenderLink(
            hello.link_id,
            self._sender,
            self._storage,
            self._maker,
            outbox,
            plan=LinkPlan.of(routes, BlockFormat.of(self._storage), limits),
            token=token,
            welcome=partial(wire.welcome, self._identity, limits, token),
            timeout_s=self._config.timeout_s,
            stats=self._stats,
            ranks=self._ranks,
            verify=self._config.verify or hello.verify,
            faults=self._faults,
        )

    def _outbox(self) -> Outbox[pb.LinkEvent]:
        heartbeat = pb.LinkEvent(heartbeat=pb.Heartbeat())
        loop = asyncio.get_running_loop()
        return Outbox(loop, heartbeat=heartbeat, timeout_s=self._config.timeout_s)

    async def _read(self, requests: AsyncIterator[pb.LinkRequest], link: SenderLink) -> None:
        try:
            async with Silence(self._config.timeout_s) as peer:
                while True:
                    link.take(await anext(requests))
                    peer.heard()
        except StopAsyncIteration:
            link.fail("peer_lost", "D closed the link")
        except TimeoutError:
            link.fail("timeout", f"D was silent for {self._config.timeout_s} s")
        except TransferError as error:
            link.fail(error.reason, error.message)


def refuse(hello: pb.LinkHello, identity: LinkIdentity) -> None:
    """Raises TransferError (epoch_mismatch, incompatible) unless both sides fit."""
    if hello.expected_prefill_epoch != identity.epoch:
        raise TransferError(
            f"D asked for epoch {hello.expected_prefill_epoch}, this is {identity.epoch}",
            reason="epoch_mismatch",
        )
    if hello.protocol_version != PROTOCOL_VERSION:
        raise TransferError(
            f"D speaks protocol {hello.protocol_version}, P {PROTOCOL_VERSION}",
            reason="incompatible",
        )
    if hello.compat_key != identity.compat_key:
        raise TransferError("the KV of both workers differs in kind", reason="incompatible")
    if hello.max_message_bytes < 1 or hello.max_inflight_messages < 1:
        raise TransferError("D has no room for messages", reason="incompatible")
    if not hello.decode_heads or not all(rank.heads for rank in hello.decode_heads):
        raise TransferError("D has a rank without KV heads", reason="incompatible")
