"""P's side of all transfers: leases, shared by the step loop, the links, and time.

    step loop    offer > grant ... > close or finish, or cancel at any moment    returns at once
    links        attach > open_pull, next_piece > announce > packed ..., acked > detach
    time         a thread that ends leases when their deadline comes, busy scheduler or not

`on_event` gets one LeaseEnded for every offered lease, whoever ended it, and never while a message
is being packed from its blocks. It is called under the sender's lock: it may only enqueue.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from core.clock import Clock
from core.errors import TransferError
from kv_transfer import wire
from kv_transfer.events import FINISHED, FirstToken, LeaseEnded, LeaseOutcome
from kv_transfer.leases import Closing, LeaseTable, Piece
from kv_transfer.stats import TransferStats
from protos import kv_transfer_pb2 as pb

_LOG = logging.getLogger(__name__)

_IDLE_WAIT_S = 60.0
"""Upper bound of one wait for something to happen; nothing depends on its length."""


class PullLink(Protocol):
    """A link to one D, as the sender sees it."""

    link_id: str

    def tell(self, event: pb.LinkEvent) -> None:
        """Says something on the control stream; returns at once."""
        ...

    def fail(self, reason: str, message: str) -> None:
        """Ends the link. Idempotent."""
        ...

    def join(self, timeout_s: float) -> None:
        """Waits until its thread has ended."""
        ...


class Sender:
    """The leases of one P worker. Thread-safe; no method but `stop` and `next_piece` waits."""

    def __init__(
        self,
        *,
        lease_s: float,
        overlap: bool,
        clock: Clock,
        on_event: Callable[[LeaseEnded], None],
        stats: TransferStats,
    ) -> None:
        self._clock = clock
        self._on_event = on_event
        self._stats = stats
        self._changed = threading.Condition()
        self._leases = LeaseTable(lease_s=lease_s, overlap=overlap)
        self._links: dict[str, PullLink] = {}
        self._stopping = False
        self._reaper = threading.Thread(target=self._reap, name="tandem-kv-leases", daemon=True)
        self._reaper.start()

    @property
    def num_leases(self) -> int:
        """Leases that are not over; a drain waits for 0."""
        with self._changed:
            return len(self._leases)

    # What the step loop says.

    def offer(
        self, transfer_id: str, *, num_blocks: int, first_block: int, deadline: float
    ) -> None:
        """Opens a lease on a prompt's blocks [first_block, num_blocks), not computed yet.

        `deadline` is the request's, on the sender's clock. The lease of an id that was cancelled or
        used before ends at once. Raises TransferError (repeated_transfer) if the id is in use.
        """
        with self._changed:
            try:
                self._leases.offer(
                    transfer_id,
                    num_blocks=num_blocks,
                    first_block=first_block,
                    now=self._clock.now(),
                    deadline=deadline,
                )
            except TransferError as error:
                if self._leases.is_live(transfer_id):
                    raise
                self._stats.failed(error.reason)
                self._on_event(LeaseEnded(transfer_id, LeaseOutcome.CANCELLED))
            self._changed.notify_all()

    def grant(self, transfer_id: str, first_block: int, blocks: Sequence[int]) -> None:
        """The prompt's blocks from index `first_block` on are complete, in these pool blocks."""
        with self._changed:
            self._leases.grant(transfer_id, first_block, blocks)
            self._changed.notify_all()

    def close(self, transfer_id: str, first_tokens: Sequence[FirstToken]) -> None:
        """Everything is granted; the lease completes once D has acknowledged it all."""
        with self._changed:
            self._leases.close(transfer_id, first_tokens, now=self._clock.now())
            self._changed.notify_all()

    def finish(self, transfer_id: str) -> None:
        """Every choice ended with its first token: ends the lease, and D needs no pull."""
        with self._changed:
            self._end(transfer_id, LeaseOutcome.FINISHED, FINISHED, "nothing is left to decode")

    def cancel(self, transfer_id: str) -> None:
        """Ends the lease; a D that pulls is refused with `aborted`.

        Idempotent. An id that was not offered yet will be refused when it is.
        """
        with self._changed:
            self._end(transfer_id, LeaseOutcome.CANCELLED, "aborted", "P gave the transfer up")

    def stop(self, timeout_s: float) -> None:
        """Ends all leases and links, and waits for the threads."""
        with self._changed:
            self._stopping = True
            for transfer_id in self._leases.live_ids():
                self._end(transfer_id, LeaseOutcome.CANCELLED, "aborted", "P is stopping")
            links = list(self._links.values())
            self._changed.notify_all()
        deadline = self._clock.now() + timeout_s
        for link in links:
            link.fail("aborted", "P is stopping")
        for link in links:
            link.join(max(0.0, deadline - self._clock.now()))
        self._reaper.join(max(0.0, deadline - self._clock.now()))

    # What the links say.

    def attach(self, link: PullLink, *, max_blocks: int, max_inflight: int) -> None:
        """A D may pull over this link; TransferError (aborted) once the sender is stopping."""
        with self._changed:
            if self._stopping:
                raise TransferError("P is stopping", reason="aborted")
            self._leases.add_link(link.link_id, max_blocks=max_blocks, max_inflight=max_inflight)
            self._links[link.link_id] = link

    def detach(self, link_id: str, reason: str, message: str) -> None:
        """The link is dead, and so is what was pulled over it. Idempotent."""
        with self._changed:
            if self._links.pop(link_id, None) is not None:
                ended_leases = self._leases.end_link(link_id)
                if ended_leases:
                    self._stats.failed(reason)
                _LOG.info("KV link %s ended (%s): %s", link_id, reason, message)
                for ended in ended_leases:
                    self._over(ended)
                self._changed.notify_all()

    def open_pull(self, link_id: str, transfer_id: str, num_held_blocks: int) -> None:
        """D pulls; it is refused over the link if it can't."""
        with self._changed:
            link = self._links.get(link_id)
            if link is None:
                return
            try:
                self._leases.open_pull(link_id, transfer_id, num_held_blocks=num_held_blocks)
            except TransferError as error:
                if error.reason != FINISHED:
                    self._stats.failed(error.reason)
                link.tell(wire.refused(transfer_id, error.reason, error.message))
            self._changed.notify_all()

    def abort_pull(self, link_id: str, transfer_id: str) -> None:
        """D gives up what it pulls over this link."""
        with self._changed:
            if self._leases.link_of(transfer_id) == link_id:
                self._over(self._leases.end(transfer_id, LeaseOutcome.ABORTED))
                self._changed.notify_all()

    def acked(self, link_id: str, seq: int) -> None:
        """D is done with the messages up to `seq`; TransferError (corrupt) for a wrong number."""
        with self._changed:
            if self._leases.has_link(link_id):
                for ended in self._leases.acked(link_id, seq, now=self._clock.now()):
                    self._over(ended)
                self._changed.notify_all()

    def next_piece(self, link_id: str, *, wait: bool) -> Piece | None:
        """The next message to pack; closings are announced on the way. None: nothing now.

        With `wait`, blocks until there is one. Raises TransferError (peer_lost) on a dead link.
        """
        with self._changed:
            while self._leases.has_link(link_id):
                piece = self._next_piece(link_id)
                if piece is not None or not wait:
                    return piece
                self._changed.wait(_IDLE_WAIT_S)
        raise TransferError("the link is closed", reason="peer_lost")

    def announce(
        self, link_id: str, piece: Piece, size_bytes: int, checksums: Sequence[int] = ()
    ) -> bool:
        """Announces the piece's message, which is owed from now on, packed or not.

        False: its lease ended, send nothing.
        """
        with self._changed:
            announced = self._leases.announced(piece.transfer_id)
            if announced:
                self._links[link_id].tell(wire.message(piece, size_bytes, checksums))
            return announced

    def is_wanted(self, piece: Piece) -> bool:
        """False if the lease ended: then the bytes of what is announced do not matter."""
        with self._changed:
            return not self._leases.is_over(piece.transfer_id)

    def packed(self, piece: Piece) -> None:
        """The piece's blocks are not read any more."""
        with self._changed:
            self._over(self._leases.packed(piece.transfer_id))

    def announce_packed(
        self, link_id: str, piece: Piece, size_bytes: int, checksums: Sequence[int]
    ) -> bool:
        """Both at once, so that what ended while it was packed is not announced."""
        with self._changed:
            ended = self._leases.packed(piece.transfer_id)
            self._over(ended)
            return ended is None and self.announce(link_id, piece, size_bytes, checksums)

    def _next_piece(self, link_id: str) -> Piece | None:
        due = self._leases.next_due(link_id)
        while isinstance(due, Closing):
            now = self._clock.now()
            self._links[link_id].tell(wire.closing(due, now=now))
            self._over(self._leases.closed(due.transfer_id, now=now))
            due = self._leases.next_due(link_id)
        return due

    def _end(self, transfer_id: str, outcome: LeaseOutcome, reason: str, message: str) -> None:
        """Ends a lease of our own accord, and tells the D that pulls it."""
        link_id = self._leases.link_of(transfer_id)
        if link_id is not None:
            self._links[link_id].tell(wire.refused(transfer_id, reason, message))
        self._over(self._leases.end(transfer_id, outcome))
        self._changed.notify_all()

    def _over(self, ended: LeaseEnded | None) -> None:
        if ended is not None:
            self._on_event(ended)

    def _reap(self) -> None:
        with self._changed:
            while not self._stopping:
                now = self._clock.now()
                for transfer_id in self._leases.expired(now):
                    self._stats.failed("lease_expired")
                    self._end(
                        transfer_id, LeaseOutcome.EXPIRED, "lease_expired", "the lease expired"
                    )
                deadline = self._leases.next_deadline()
                patience = _IDLE_WAIT_S if deadline is None else deadline - now
                self._changed.wait(min(_IDLE_WAIT_S, max(0.0, patience)))
