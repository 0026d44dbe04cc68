"""The leader's hold on the other ranks of its group, as far as links are concerned.

A link has a connection of its own to each rank that takes part in it (rank_port.py listens there):
orders go out, replies come back in their order. The link's thread gives orders and waits for
replies; `wake` alone may come from elsewhere.

Ranks follow plans in their own time, and the leader may be ahead of them: orders of links come on
another connection than plans. So every order says how many plans must have been followed before it
is carried out: as many as the leader had sent when it gave the order, but for a step it was itself
still in. A rank can't wait for ever: those plans are on their way already.

    P   blocks are granted after the step that computed them. A leader can end a step of which no
        row is sampled before the others have written their last layer: nothing is left to sum
    D   a slot is acknowledged to P by the leader alone, after it has sent the plan to unpack it;
        the order to receive into that slot again follows the acknowledgement
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from core.errors import TransferError
from core.frames import read_frame, send_frame
from kv_transfer.link import Rendezvous
from kv_transfer.rank_orders import (
    Abort,
    Arrived,
    Failed,
    Forget,
    Hosts,
    Opened,
    OpenLanes,
    Order,
    PackBlocks,
    Packed,
    ReceiveMessage,
    Reply,
    SendMessage,
    decode,
    encode,
)


@dataclass(frozen=True, slots=True)
class RankAddress:
    """Where rank `rank` > 0 of the group takes connections of links."""

    rank: int
    host: str
    port: int


class OtherRanks:
    """All but the leader; none for a worker of one rank."""

    def __init__(
        self,
        addresses: Sequence[RankAddress] = (),
        token: bytes = b"",
        order_unpack: Callable[[str, int, Sequence[int]], None] = lambda *_: None,
        num_settled: Callable[[], int] = lambda: 0,
    ) -> None:
        """`order_unpack(link_id, seq, blocks)` reaches all of them in order with their steps.

        `num_settled` counts the plans sent to them, but for a step under way.
        """
        self._addresses = {address.rank: address for address in addresses}
        self._token = token
        self._order_unpack = order_unpack
        self._num_settled = num_settled

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(self._addresses)

    def unpack(self, link_id: str, seq: int, blocks: Sequence[int]) -> None:
        """They are to put their shares of a message that arrived into these blocks.

        Belongs to the step loop. Raises WorkerLostError.
        """
        if self._addresses:
            self._order_unpack(link_id, seq, blocks)

    def open(self, rank: int, order: OpenLanes) -> RankLink:
        """The link's share on `rank`, which makes its data links meanwhile. TransferError."""
        address = self._addresses.get(rank)
        if address is None:
            raise TransferError(f"the group has no rank {rank}", reason="incompatible")
        return RankLink(address, self._token, order, self._num_settled)


class RankLink:
    """One link's share on one other rank. All methods raise TransferError but the last three."""

    def __init__(
        self,
        address: RankAddress,
        token: bytes,
        order: OpenLanes,
        num_settled: Callable[[], int],
    ) -> None:
        self._name = f"rank {address.rank}"
        self._num_settled = num_settled
        try:
            self._socket = socket.create_connection((address.host, address.port), order.timeout_s)
        except OSError as error:
            raise self._lost(error) from error
        self.lanes = order.lanes
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._socket.sendall(token)
            send_frame(self._socket, encode(order))
        except OSError as error:
            self._socket.close()
            raise self._lost(error) from error

    def hosts(self) -> Rendezvous:
        """Waits until a rank of P has said where it waits."""
        reply = self._reply()
        assert isinstance(reply, Hosts), reply
        return reply.rendezvous

    def opened(self) -> None:
        """Waits until its data links are there."""
        reply = self._reply()
        assert isinstance(reply, Opened), reply

    # P

    def pack(self, seq: int, blocks: Sequence[int]) -> None:
        self._order(PackBlocks(seq, tuple(blocks), self._num_settled()))

    def packed(self, seq: int) -> tuple[int, ...]:
        """Waits until the blocks asked for last are not read any more; checksums, if any."""
        reply = self._reply()
        assert isinstance(reply, Packed) and reply.seq == seq, reply
        return reply.checksums

    def send(self, seq: int, num_blocks: int) -> None:
        self._order(SendMessage(seq, num_blocks))

    # D

    def receive(self, seq: int, num_blocks: int, checksums: tuple[int, ...]) -> RankArrival:
        self._order(ReceiveMessage(seq, num_blocks, checksums, self._num_settled()))
        return RankArrival(self, seq)

    def arrived(self, seq: int) -> bool:
        """Waits for the oldest message; whether it is intact."""
        reply = self._reply()
        assert isinstance(reply, Arrived) and reply.seq == seq, reply
        return reply.intact

    # The end

    def wake(self) -> None:
        """Ends a wait for a reply. Any thread."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def abort(self) -> None:
        """Has the rank end its data links."""
        with contextlib.suppress(OSError):
            send_frame(self._socket, encode(Abort()))

    def forget(self) -> None:
        """Nothing is left to be unpacked from its staging: frees everything."""
        with contextlib.suppress(OSError):
            send_frame(self._socket, encode(Forget(self._num_settled())))
        self._socket.close()

    def _order(self, order: Order) -> None:
        try:
            send_frame(self._socket, encode(order))
        except OSError as error:
            raise self._lost(error) from error

    def _reply(self) -> Order | Reply:
        try:
            reply = decode(read_frame(self._socket))
        except TimeoutError as error:
            raise TransferError(f"{self._name} does not answer", reason="timeout") from error
        except OSError as error:
            raise self._lost(error) from error
        if isinstance(reply, Failed):
            raise TransferError(f"{self._name}: {reply.message}", reason=reply.reason)
        return reply

    def _lost(self, error: OSError) -> TransferError:
        return TransferError(f"{self._name} of the group is lost: {error}", reason="peer_lost")


class RankArrival:
    """One rank's share of a message that is under way."""

    def __init__(self, link: RankLink, seq: int) -> None:
        self._link = link
        self._seq = seq

    def wait(self) -> bool:
        """Until it has arrived; whether it is intact. Raises TransferError."""
        return self._link.arrived(self._seq)
