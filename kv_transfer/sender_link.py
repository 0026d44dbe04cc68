"""P's end of the link to one D: a thread that packs, announces and sends.

connect   hear where all ranks wait > welcome D > the data links of all ranks, within timeout_s
serve     all pieces that are due > announce > pack the first into its slot, part by part, and start
          sending each; with nothing to pack, wait for the oldest send; D's acknowledgements free
          slots. With several ranks or checksums: pack on all ranks > announce > start sending.
          A link that takes blocks from their places reads them until they are sent
fail      stream ended, data link broke, a deadline passed, or P stops: leases pulled over this
          link end, the data links and the stream are closed

The leader's thread is this one; other ranks have theirs (rank_share.py), which it drives. A piece
is granted after the leader's share of the step that computed it; another rank packs once it has
done its own (rank_link.py). It is announced, and its blocks may go, when all ranks have packed.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence

from core.errors import TransferError
from core.faults import FaultPoint, Faults
from kv_cache.storage import KVStorage
from kv_transfer.checksum import checksum
from kv_transfer.lanes import Lanes
from kv_transfer.leases import Piece
from kv_transfer.link import DataLink, LinkMaker, Pending, Rendezvous
from kv_transfer.link_plan import LinkPlan, lane_name
from kv_transfer.outbox import Outbox
from kv_transfer.parts import parts_of
from kv_transfer.rank_link import OtherRanks, RankLink
from kv_transfer.rank_orders import OpenLanes
from kv_transfer.sender import Sender
from kv_transfer.staging import BlockFormat
from kv_transfer.stats import TransferStats
from kv_transfer.under_way import UnderWay
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
        plan: LinkPlan,
        token: str,
        welcome: Callable[[Sequence[Rendezvous | None]], pb.LinkEvent],
        timeout_s: float,
        stats: TransferStats,
        ranks: OtherRanks | None = None,
        verify: bool = False,
        faults: Faults | None = None,
    ) -> None:
        """`token`: of this link, a secret. `welcome` makes the event that tells D of it and of
        where each rank waits; None for one that has no part in the link."""
        self.link_id = link_id
        self._sender = sender
        self._storage = storage
        self._maker = maker
        self._outbox = outbox
        self._plan = plan
        self._token = token
        self._welcome = welcome
        self._timeout_s = timeout_s
        self._stats = stats
        self._ranks = ranks or OtherRanks()
        self._verify = verify
        self._faults = faults
        self._lanes = Lanes()
        self._others: list[RankLink] = []
        self._lock = threading.Lock()
        self._failed = False
        self._thread = threading.Thread(target=self._run, name="tandem-kv-send", daemon=True)

    def start(self) -> None:
        """Attaches to the sender and begins to serve; TransferError if the sender is stopping."""
        size = self._plan.size
        self._sender.attach(self, max_blocks=size.num_blocks, max_inflight=size.num_slots)
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
            others = list(self._others)
        self._outbox.close()
        self._sender.detach(self.link_id, reason, message)
        self._lanes.abort()
        for spec in self._plan.prefill_lanes(0):
            self._maker.abandon(self._lane_name(spec.index))
        for other in others:
            other.wake()

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
            self._lanes.close()
            for other in self._others:
                other.abort()
                other.forget()

    def _connect(self) -> None:
        plan, here = self._plan, self._maker.host()
        hosts: list[Rendezvous | None] = [here, *(None for _ in self._ranks.numbers)]
        parts: dict[int, RankLink] = {}
        for rank in self._ranks.numbers:
            specs = plan.prefill_lanes(rank)
            if specs:
                order = OpenLanes(
                    self.link_id,
                    self._token,
                    sends=True,
                    lanes=specs,
                    peers=(),
                    num_slots=plan.size.num_slots,
                    blocks_per_slot=plan.size.num_blocks,
                    timeout_s=self._timeout_s,
                    verify=self._verify,
                )
                parts[rank] = self._ranks.open(rank, order)
                self._add(parts[rank])
        for rank, part in parts.items():
            hosts[rank] = part.hosts()
        self.tell(self._welcome(hosts))
        block_format = BlockFormat.of(self._storage)
        self._lanes.connect(
            plan.prefill_lanes(0),
            self._accept,
            block_format,
            plan.size,
            backend=here.backend,
            timeout_s=self._timeout_s,
        )
        for other in self._others:
            other.opened()

    def _accept(self, index: int) -> DataLink:
        return self._maker.accept(self._lane_name(index), self._timeout_s)

    def _lane_name(self, index: int) -> str:
        return lane_name(self.link_id, self._token, index)

    def _add(self, other: RankLink) -> None:
        with self._lock:
            self._others.append(other)
            if self._failed:
                raise TransferError("the link closed while it was made", reason="peer_lost")

    def _serve(self) -> None:
        owed: deque[Piece] = deque()
        sending = UnderWay(self._sender.packed, self._timeout_s)
        try:
            self._serve_until_it_fails(owed, sending)
        finally:
            sending.drop()
            for piece in owed:
                self._sender.packed(piece)

    def _serve_until_it_fails(self, owed: deque[Piece], sending: UnderWay) -> None:
        """`owed` are pieces that are announced and not packed: never left behind."""
        most = self._plan.size.num_slots if self._lanes.move_alone or not self._others else 1
        while True:
            if len(sending) == most:
                sending.wait()  # the next one's slot is its own
            piece = self._sender.next_piece(self.link_id, wait=not owed and not sending)
            if piece is not None and self._announces_first:
                self._owe(piece, owed)
            elif piece is not None or owed:
                self._send(piece or owed.popleft(), sending)
            elif sending:
                sending.wait()

    @property
    def _announces_first(self) -> bool:
        """Before packing, which then overlaps with D's getting ready.

        Not with checksums, which are of what was packed; nor with several data links, since other
        ranks say when they have packed.
        """
        return len(self._plan.routes) == 1 and not self._verify

    def _owe(self, piece: Piece, owed: deque[Piece]) -> None:
        if self._sender.announce(self.link_id, piece, self._size_bytes(piece)):
            owed.append(piece)
        else:
            self._sender.packed(piece)

    def _send(self, piece: Piece, sending: UnderWay) -> None:
        if not self._announces_first and not self._pack(piece):
            return
        # Counted before D can have it, so that whoever hears of its arrival finds it counted
        self._stats.message(self._size_bytes(piece))
        if self._announces_first:
            self._pack_and_send(piece, sending)
        else:
            sending.add(self._send_packed(piece))

    def _size_bytes(self, piece: Piece) -> int:
        return len(piece.blocks) * self._plan.bytes_per_block

    def _pack_and_send(self, piece: Piece, sending: UnderWay) -> None:
        """Part by part, and without packing where the link takes blocks from their places. What
        nobody wants any more is owed all the same, whatever its bytes."""
        (lane,) = self._lanes
        slot = lane.staging.slot(piece.seq, len(piece.blocks))
        parts: list[Pending] = []
        reads = False
        with contextlib.ExitStack() as stack:
            stack.callback(self._sender.packed, piece)
            self._fault_before_packing()
            for part in parts_of(self._plan, len(piece.blocks)):
                out, blocks = slot[part.start : part.stop], piece.blocks[part.start : part.stop]
                wanted = self._sender.is_wanted(piece)
                in_place = lane.send_in_place(self._storage, blocks) if wanted else None
                if wanted and in_place is None:
                    self._storage.pack(blocks, lane.heads, out=out)
                reads = reads or in_place is not None
                parts.append(in_place or lane.link.send(out))
            sending.add(parts, piece if reads else None)
            if reads:
                stack.pop_all()  # once it was waited for

    def _send_packed(self, piece: Piece) -> list[Pending]:
        num_blocks = len(piece.blocks)
        for other in self._others:
            other.send(piece.seq, num_blocks)
        slots = [(lane.link, lane.staging.slot(piece.seq, num_blocks)) for lane in self._lanes]
        parts = parts_of(self._plan, num_blocks)
        return [link.send(slot[part.start : part.stop]) for link, slot in slots for part in parts]

    def _pack(self, piece: Piece) -> bool:
        """Copies and announces; False if the lease ended meanwhile. Its blocks are free after."""
        packed = False
        checksums: dict[int, int] = {}
        try:
            self._fault_before_packing()
            for other in self._others:
                other.pack(piece.seq, piece.blocks)
            for lane in self._lanes:
                slot = lane.staging.slot(piece.seq, len(piece.blocks))
                self._storage.pack(piece.blocks, lane.heads, out=slot)
                if self._verify:
                    checksums[lane.index] = checksum(slot)
            for other in self._others:
                indices = (spec.index for spec in other.lanes)
                checksums.update(zip(indices, other.packed(piece.seq), strict=False))
            packed = True
        finally:
            if not packed:  # ends the lease first, so that nothing is announced
                self.fail("corrupt", "the blocks could not be packed")
            in_order = [checksums[index] for index in sorted(checksums)]
            announced = self._sender.announce_packed(
                self.link_id, piece, self._size_bytes(piece), in_order
            )
        return announced

    def _fault_before_packing(self) -> None:
        fault = None if self._faults is None else self._faults.take(FaultPoint.KV_PACK)
        if self._faults is not None and fault is not None:
            self._faults.wait(fault.delay_s)
            if fault.action is not None:
                raise TransferError("a fault at kv_pack", reason="corrupt")
