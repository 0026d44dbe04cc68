"""P's end of the link to one D: a thread that packs, announces and sends.

connect   the data links, within timeout_s
serve     next piece > pack into its slot > announce > start sending; with nothing to pack, wait
          for the oldest send; D's acknowledgements free slots
fail      stream ended, data link broke, a deadline passed, or P stops: leases pulled over this
          link end, the data links and the stream are closed
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence

import torch

from core.errors import TransferError
from core.faults import FaultPoint, Faults
from kv_cache.storage import KVStorage
from kv_transfer.checksum import checksum
from kv_transfer.layout import Route
from kv_transfer.leases import Piece
from kv_transfer.link import LinkMaker, Pending
from kv_transfer.outbox import Outbox
from kv_transfer.sender import Sender
from kv_transfer.staging import BlockFormat, Lane, Staging, StagingLimits
from kv_transfer.stats import TransferStats
from protos import kv_transfer_pb2 as pb


class SenderLink:
    """One D's link. `tell`, `take` and `fail` return at once and may be called from any thread."""

    def __init__(
        self,
        link_id: str,
        sender: Sender,
        storage: KVStorage,
        maker: LinkMaker,
        outbox: Outbox[pb.LinkEvent],
        *,
        routes: Sequence[tuple[int, Route]],
        limits: StagingLimits,
        timeout_s: float,
        stats: TransferStats,
        verify: bool = False,
        faults: Faults | None = None,
    ) -> None:
        self.link_id = link_id
        self._sender = sender
        self._storage = storage
        self._format = BlockFormat.of(storage)
        self._maker = maker
        self._outbox = outbox
        self._routes = routes
        self._limits = limits
        self._timeout_s = timeout_s
        self._stats = stats
        self._verify = verify
        self._faults = faults
        self._lanes: list[Lane] = []
        self._lock = threading.Lock()
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="tandem-kv-send", daemon=True)

    def start(self) -> None:
        """Attaches to the sender and begins to serve; TransferError if the sender is stopping."""
        num_blocks = self._limits.num_blocks(self._format)
        max_inflight = self._limits.max_inflight_messages
        self._sender.attach(self, max_blocks=num_blocks, max_inflight=max_inflight)
        self._thread.start()

    def take(self, request: pb.LinkRequest) -> None:
        """What D says; TransferError (corrupt) if it makes no sense."""
        match request.WhichOneof("kind"):
            case "pull":
                pull = request.pull
                self._sender.open_pull(self.link_id, pull.transfer_id, pull.num_held_blocks)
            case "abort":
                self._sender.abort_pull(self.link_id, request.abort.transfer_id)
            case "ack":
                self._sender.acked(self.link_id, request.ack.seq)
            case "hello":
                raise TransferError("a second hello on a link", reason="corrupt")

    def tell(self, event: pb.LinkEvent) -> None:
        self._outbox.put(event)

    def fail(self, reason: str, message: str) -> None:
        with self._lock:
            if self._failed:
                return
            self._failed = True
            lanes = list(self._lanes)
        self._outbox.close()
        self._sender.detach(self.link_id, reason, message)
        for lane in lanes:
            lane.link.abort()
        for index, _ in self._routes[len(lanes) :]:
            self._maker.abandon(self._name(index))

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def _run(self) -> None:
        try:
            self._connect()
            self._serve()
        except TransferError as error:
            self.fail(error.reason, error.message)
        finally:
            self.fail("peer_lost", "the sending thread ended")
            for lane in self._lanes:
                lane.link.close()

    def _connect(self) -> None:
        backend = self._maker.host().backend
        for index, route in self._routes:
            link = self._maker.accept(self._name(index), self._timeout_s)
            staging = Staging(
                self._format, self._limits, num_heads=route.num_heads, backend=backend
            )
            whole = route.num_heads == self._format.num_kv_heads
            self._add(Lane(link, staging, None if whole else route.prefill_heads))

    def _name(self, index: int) -> str:
        return f"{self.link_id}/{index}"

    def _add(self, lane: Lane) -> None:
        with self._lock:
            self._lanes.append(lane)
            if self._failed:
                raise TransferError("the link closed while it was made", reason="peer_lost")

    def _serve(self) -> None:
        sending: deque[list[Pending]] = deque()
        while True:
            piece = self._sender.next_piece(self.link_id, wait=not sending)
            if piece is not None:
                self._send(piece, sending)
            full = len(sending) == self._limits.max_inflight_messages
            if sending and (piece is None or full):
                for pending in sending.popleft():
                    pending.wait(self._timeout_s)

    def _send(self, piece: Piece, sending: deque[list[Pending]]) -> None:
        buffers = [lane.staging.slot(piece.seq, len(piece.blocks)) for lane in self._lanes]
        if not self._pack(piece, buffers):
            return
        sending.append([x.link.send(b) for x, b in zip(self._lanes, buffers, strict=True)])
        self._stats.message(sum(buffer.nbytes for buffer in buffers))

    def _pack(self, piece: Piece, buffers: Sequence[torch.Tensor]) -> bool:
        """Copies and announces; False if the lease ended meanwhile. Its blocks are free after."""
        packed = False
        checksums: list[int] = []
        try:
            self._fault_before_packing()
            for lane, buffer in zip(self._lanes, buffers, strict=True):
                self._storage.pack(piece.blocks, lane.heads, out=buffer)
            if self._verify:
                checksums = [checksum(buffer) for buffer in buffers]
            packed = True
        finally:
            if not packed:  # ends the lease first, so that nothing is announced
                self.fail("corrupt", "the blocks could not be packed")
            size_bytes = len(piece.blocks) * self._format.bytes_per_block
            announced = self._sender.announce(self.link_id, piece, size_bytes, checksums)
        return announced

    def _fault_before_packing(self) -> None:
        fault = None if self._faults is None else self._faults.take(FaultPoint.KV_PACK)
        if self._faults is not None and fault is not None:
            self._faults.wait(fault.delay_s)
            if fault.action is not None:
                raise TransferError("a fault at kv_pack", reason="corrupt")
