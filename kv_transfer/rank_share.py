"""One link's share on a rank that follows a leader: data links, and the thread that moves bytes.

    P   pack into a slot, once its blocks are complete here > tell > send when told; with nothing
        to do, wait for the oldest send
    D   receive what is announced, each into its slot as soon as that is free > tell
        the rank loop unpacks (rank_port.py)

It knows no leases, pulls or deadlines of requests: those are the leader's business.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from collections import deque
from collections.abc import Sequence

from core.errors import TransferError
from core.frames import send_frame
from kv_cache.storage import KVStorage
from kv_transfer.checksum import checksum
from kv_transfer.lanes import Lanes
from kv_transfer.link import DataLink, LinkMaker, Pending
from kv_transfer.link_plan import lane_name
from kv_transfer.rank_orders import (
    Arrived,
    Failed,
    Hosts,
    Opened,
    OpenLanes,
    Order,
    PackBlocks,
    Packed,
    ReceiveMessage,
    Reply,
    SendMessage,
    encode,
)
from kv_transfer.staging import BlockFormat, StagingSize


class PlanCount:
    """How many plans of its leader this rank has followed. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._ended = False

    def add(self) -> None:
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def end(self) -> None:
        """No more will be followed: ends all waits."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def has(self, count: int) -> bool:
        with self._changed:
            return self._count >= count

    def wait_for(self, count: int, timeout_s: float | None = None) -> None:
        """Until so many are done. Raises TransferError (timeout or peer_lost)."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._ended or self._count >= count, timeout_s):
                raise TransferError("plans did not come in time", reason="timeout")
            if self._count < count:
                raise TransferError("the rank follows no more plans", reason="peer_lost")


class RankShare:
    """`take` and `abort` belong to who reads orders; `unpack` to the rank loop."""

    def __init__(
        self,
        order: OpenLanes,
        connection: socket.socket,
        storage: KVStorage,
        maker: LinkMaker,
        plans: PlanCount,
    ) -> None:
        self.link_id = order.link_id
        self._order = order
        self._connection = connection
        self._storage = storage
        self._maker = maker
        self._plans = plans
        self._lanes = Lanes()
        self._orders: queue.SimpleQueue[Order | Reply | None] = queue.SimpleQueue()
        name = "tandem-kv-send" if order.sends else "tandem-kv-receive"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def take(self, order: Order | Reply) -> None:
        self._orders.put(order)

    def abort(self) -> None:
        """Kills the data links and ends the thread. Idempotent."""
        self._orders.put(None)
        self._lanes.abort()
        if self._order.sends:
            for spec in self._order.lanes:
                self._maker.abandon(self._name(spec.index))

    def join(self) -> None:
        """Waits for the thread: at most for the deadline of one operation."""
        self._thread.join()

    def unpack(self, seq: int, blocks: Sequence[int]) -> None:
        """Message `seq` has arrived, and its slot was not given to another."""
        for lane in self._lanes:
            self._storage.unpack(blocks, lane.staging.slot(seq, len(blocks)), lane.heads)

    def _run(self) -> None:
        try:
            self._connect()
            self._reply(Opened())
            if self._order.sends:
                self._send_all()
            else:
                self._receive_all()
        except TransferError as error:
            self._reply(Failed(error.reason, error.message))
        finally:
            self._lanes.close()

    def _connect(self) -> None:
        order = self._order
        size = StagingSize(order.num_slots, order.blocks_per_slot)
        block_format = BlockFormat.of(self._storage)
        if order.sends:
            here = self._maker.host()
            self._reply(Hosts(here))
            backend = here.backend
        else:
            backend = order.peers[0].backend
        self._lanes.connect(
            order.lanes,
            self._join,
            block_format,
            size,
            backend=backend,
            timeout_s=order.timeout_s,
            shares=order.sends,  # D's leader calls a slot free before this rank has unpacked it
        )

    def _join(self, index: int) -> DataLink:
        order = self._order
        if order.sends:
            return self._maker.accept(self._name(index), order.timeout_s)
        peers = {spec.index: peer for spec, peer in zip(order.lanes, order.peers, strict=True)}
        return self._maker.dial(peers[index], self._name(index), order.timeout_s)

    def _name(self, index: int) -> str:
        return lane_name(self._order.link_id, self._order.token, index)

    def _send_all(self) -> None:
        sending: deque[list[Pending]] = deque()
        while True:
            order = self._next(wait=not sending)
            match order:
                case PackBlocks(seq, blocks, after_plans):
                    self._plans.wait_for(after_plans, self._order.timeout_s)
                    self._reply(Packed(seq, self._pack(seq, blocks)))
                case SendMessage(seq, num_blocks):
                    sending.append(
                        [x.link.send(x.staging.slot(seq, num_blocks)) for x in self._lanes]
                    )
            full = len(sending) == self._order.num_slots
            if sending and (order is None or full):
                for pending in sending.popleft():
                    pending.wait(self._order.timeout_s)

    def _pack(self, seq: int, blocks: Sequence[int]) -> tuple[int, ...]:
        slots = [lane.staging.slot(seq, len(blocks)) for lane in self._lanes]
        for lane, slot in zip(self._lanes, slots, strict=True):
            self._storage.pack(blocks, lane.heads, out=slot)
        return tuple(map(checksum, slots)) if self._order.verify else ()

    def _receive_all(self) -> None:
        ordered: deque[ReceiveMessage] = deque()
        posted: deque[tuple[ReceiveMessage, list[Pending]]] = deque()
        while True:
            while (order := self._next(wait=not posted and not ordered)) is not None:
                assert isinstance(order, ReceiveMessage), order
                ordered.append(order)
            # What has been posted is owed first: only without that is a slot worth waiting for
            while ordered and (not posted or self._plans.has(ordered[0].after_plans)):
                posted.append((ordered[0], self._post(ordered[0])))
                ordered.popleft()
            message, pending_shares = posted.popleft()
            for pending in pending_shares:
                pending.wait(self._order.timeout_s)
            self._reply(Arrived(message.seq, self._is_intact(message)))

    def _post(self, order: ReceiveMessage) -> list[Pending]:
        self._plans.wait_for(order.after_plans, self._order.timeout_s)
        return [x.link.recv(x.staging.slot(order.seq, order.num_blocks)) for x in self._lanes]

    def _is_intact(self, message: ReceiveMessage) -> bool:
        if not message.checksums:
            return True
        slots = [lane.staging.slot(message.seq, message.num_blocks) for lane in self._lanes]
        return message.checksums == tuple(map(checksum, slots))

    def _next(self, *, wait: bool) -> Order | Reply | None:
        """The next order; None: none now. Raises TransferError (peer_lost) at the end."""
        try:
            order = self._orders.get(block=wait)
        except queue.Empty:
            return None
        if order is None:
            raise TransferError("the leader ended the link", reason="peer_lost")
        return order

    def _reply(self, reply: Reply) -> None:
        with contextlib.suppress(OSError):  # the leader is gone, which the reader notices
            send_frame(self._connection, encode(reply))
