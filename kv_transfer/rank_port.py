"""Where a rank that follows a leader takes its shares of links: one connection for each link.

connect   whoever does not say the group's token first is cut off
link      a thread reads orders, another one carries them out (rank_share.py)
unpack    by the rank loop, when its plans say so
followed  by the rank loop after every plan: some orders wait for so many
"""

from __future__ import annotations

import contextlib
import hmac
import logging
import socket
import threading
from collections.abc import Sequence

from core.errors import TransferError
from core.frames import read_exactly, read_frame
from kv_cache.storage import KVStorage
from kv_transfer.link import LinkMaker
from kv_transfer.rank_orders import Abort, Forget, OpenLanes, Order, Reply, decode
from kv_transfer.rank_share import PlanCount, RankShare

_LOG = logging.getLogger(__name__)

_HELLO_TIMEOUT_S = 10.0
"""For whoever connects to say what it wants."""


class RankPort:
    """All links of one rank. `serve` once; `unpack` and `followed` belong to the rank loop."""

    def __init__(self, host: str, token: bytes) -> None:
        family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
        self._socket = socket.create_server((host, 0), family=family)
        self.port: int = self._socket.getsockname()[1]
        self._token = token
        self._plans = PlanCount()
        self._lock = threading.Lock()
        self._shares: dict[str, RankShare] = {}
        self._connections: set[socket.socket] = set()
        self._closed = False

    def serve(self, storage: KVStorage, maker: LinkMaker) -> None:
        """Takes connections from now on; earlier ones have waited."""
        threading.Thread(
            target=self._accept, args=(storage, maker), name="tandem-kv-port", daemon=True
        ).start()

    def unpack(self, link_id: str, seq: int, blocks: Sequence[int]) -> None:
        """This rank's share of a message that has arrived goes into its blocks."""
        with self._lock:
            share = self._shares[link_id]
        share.unpack(seq, blocks)

    def followed(self) -> None:
        """One more plan of the leader's is done."""
        self._plans.add()

    @property
    def num_links(self) -> int:
        """Links whose staging is still kept."""
        with self._lock:
            return len(self._shares)

    def close(self) -> None:
        """Ends all links. Idempotent."""
        with self._lock:
            self._closed = True
            connections = list(self._connections)
        self._plans.end()
        for each in (self._socket, *connections):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # wakes a waiting thread, as closing does not
        self._socket.close()

    def _accept(self, storage: KVStorage, maker: LinkMaker) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._socket.accept()
                threading.Thread(
                    target=self._serve,
                    args=(connection, storage, maker),
                    name="tandem-kv-orders",
                    daemon=True,
                ).start()

    def _serve(self, connection: socket.socket, storage: KVStorage, maker: LinkMaker) -> None:
        with connection, contextlib.suppress(OSError, TransferError):
            connection.settimeout(_HELLO_TIMEOUT_S)
            if not hmac.compare_digest(read_exactly(connection, len(self._token)), self._token):
                return
            order = decode(read_frame(connection))
            if not isinstance(order, OpenLanes) or not self._add(connection):
                return
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(None)  # the group's heartbeats tell whether the leader lives
                self._follow(connection, RankShare(order, connection, storage, maker, self._plans))
            finally:
                with self._lock:
                    self._connections.discard(connection)

    def _follow(self, connection: socket.socket, share: RankShare) -> None:
        """Until the leader closes. If it does so without a word it is dead, and the end of this
        rank near: what has arrived stays for plans that may still come."""
        link_id, forgotten = share.link_id, False
        with self._lock:
            self._shares[link_id] = share
        share.start()
        try:
            while not forgotten:
                order: Order | Reply = decode(read_frame(connection))
                if isinstance(order, Abort):
                    share.abort()
                elif isinstance(order, Forget):
                    self._plans.wait_for(order.after_plans)
                    forgotten = True
                else:
                    share.take(order)
        finally:
            share.abort()
            share.join()
            with self._lock:
                if forgotten or self._closed:
                    del self._shares[link_id]

    def _add(self, connection: socket.socket) -> bool:
        with self._lock:
            self._connections.add(connection)
            return not self._closed
