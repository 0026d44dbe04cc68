"""Attaches a role and its half of the KV transfer to an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc

from core.clock import Clock
from core.config import Config
from core.faults import Faults
from core.kv_partition import kv_heads_of_rank
from decode_worker.build import build_decode_role
from decode_worker.ports import KVOps
from decode_worker.role import DecodeRole
from engine.builder import Engine
from engine.kv_lender import KVLender, WorkerIdentity
from kv_transfer.link import LinkMaker
from kv_transfer.rank_link import OtherRanks
from kv_transfer.receiver import Receiver
from kv_transfer.sender import Sender
from kv_transfer.service import KvTransferService
from kv_transfer.staging import BlockFormat
from kv_transfer.stats import TransferStats
from kv_transfer.wire import LinkIdentity
from prefill_worker.build import build_prefill_role
from prefill_worker.role import PrefillRole
from protos import kv_transfer_pb2_grpc
from protos.secure_grpc import PeerCertificates


class Mailbox:
    """Where transfers post their events: made before the step loop that will take them."""

    def __init__(self) -> None:
        self._post: Callable[[object], None] | None = None

    def connect(self, post: Callable[[object], None]) -> None:
        self._post = post

    def post(self, message: object) -> None:
        assert self._post is not None, "no transfer runs before the step loop exists"
        self._post(message)


@dataclass(frozen=True, slots=True)
class RoleSetup:
    """All that both roles are built from."""

    config: Config
    engine: Engine
    kv_ops: KVOps
    identity: WorkerIdentity
    links: LinkMaker
    clock: Clock
    mailbox: Mailbox
    stats: TransferStats
    faults: Faults | None = None
    ranks: OtherRanks = field(default_factory=OtherRanks)
    certificates: PeerCertificates = None

    def attach_prefill(self, server: grpc.aio.Server) -> tuple[PrefillRole, Sender]:
        """The prefill role; its sender is served to decode workers through `server`."""
        sender = self._serve_sender(server)
        lender = self._lender(sender)
        return build_prefill_role(self.engine, self.config.scheduler, lender), sender

    def attach_decode(
        self, server: grpc.aio.Server, loop: asyncio.AbstractEventLoop
    ) -> tuple[DecodeRole, Receiver, Sender]:
        """The decode role; its receiver's control streams run in `loop`.

        Its sender serves other decode workers, which take over what runs here.
        """
        receiver = Receiver(
            self._link_identity(),
            BlockFormat.of(self.engine.storage),
            self.links,
            self.config.kv_transfer,
            loop=loop,
            clock=self.clock,
            on_event=self.mailbox.post,
            stats=self.stats,
            faults=self.faults,
            ranks=self.ranks,
            certificates=self.certificates,
        )
        sender = self._serve_sender(server)
        role = build_decode_role(
            self.engine, self.config.scheduler, receiver, self.kv_ops, self._lender(sender)
        )
        return role, receiver, sender

    def _serve_sender(self, server: grpc.aio.Server) -> Sender:
        settings, stats = self.config.kv_transfer, self.stats
        sender = Sender(
            lease_s=settings.lease_s,
            overlap=settings.overlap,
            clock=self.clock,
            on_event=self.mailbox.post,
            stats=stats,
        )
        service = KvTransferService(
            self._link_identity(),
            sender,
            self.engine.storage,
            self.links,
            settings,
            stats,
            self.faults,
            self.ranks,
        )
        kv_transfer_pb2_grpc.add_KvTransferServicer_to_server(service, server)
        return sender

    def _lender(self, sender: Sender) -> KVLender:
        return KVLender(
            self.identity,
            self.engine.pool,
            sender,
            window=self.engine.window,
            lease_s=self.config.kv_transfer.lease_s,
        )

    def _link_identity(self) -> LinkIdentity:
        identity, num_heads = self.identity, self.engine.card.num_kv_heads
        size = 1 + len(self.ranks.numbers)
        heads = [tuple(kv_heads_of_rank(num_heads, size, rank)) for rank in range(size)]
        assert heads[0] == tuple(self.engine.kv_heads)
        return LinkIdentity(identity.worker_id, identity.epoch, identity.compat_key, tuple(heads))
