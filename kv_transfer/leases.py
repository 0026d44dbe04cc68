"""Leases: P's promises to keep blocks for pulls. Pure: the caller gives the time.

    OFFERED   blocks are promised to whoever pulls; for at most `lease_s`
    PULLING   D's pull is open; granted blocks become messages; until the request's deadline
    CLOSED    everything and the first tokens are announced; only acknowledgements are owed, each
              of them within `lease_s` of the one before
    ENDING    over, but messages are still to be packed from its blocks
    ENDED     `LeaseEnded` was returned, once; only the id and the outcome are remembered

`close` may come while OFFERED: a short prompt is computed before D's pull arrives.
"""

from __future__ import annotations

import enum
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from core.errors import TransferError
from kv_transfer.events import FINISHED, FirstToken, LeaseEnded, LeaseOutcome

_MAX_REMEMBERED = 8192
"""Ids of ended leases kept, so that late messages and repeats are told from strangers."""


class LeaseState(enum.Enum):
    OFFERED = "offered"
    PULLING = "pulling"
    CLOSED = "closed"
    ENDING = "ending"
    ENDED = "ended"


_LEGAL = {
    LeaseState.OFFERED: {LeaseState.PULLING, LeaseState.ENDED},
    LeaseState.PULLING: {LeaseState.CLOSED, LeaseState.ENDING, LeaseState.ENDED},
    LeaseState.CLOSED: {LeaseState.ENDING, LeaseState.ENDED},
    LeaseState.ENDING: {LeaseState.ENDED},
    LeaseState.ENDED: set(),
}


@dataclass(frozen=True, slots=True)
class Piece:
    """Message `seq` of a link. Its lease is pinned until `packed`."""

    seq: int
    transfer_id: str
    first_block: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Closing:
    """Everything was announced: tell D the first tokens."""

    transfer_id: str
    first_tokens: tuple[FirstToken, ...]
    closed_at: float


@dataclass(slots=True)
class _Link:
    max_blocks: int
    max_inflight: int
    num_announced: int = 0
    """Also the number of the last message: they count from 1."""
    num_acked: int = 0
    pulls: dict[str, _Lease] = field(default_factory=dict)


@dataclass(slots=True)
class _Lease:
    transfer_id: str
    first_block: int
    num_blocks: int
    hard_deadline: float
    deadline: float
    state: LeaseState = LeaseState.OFFERED
    blocks: list[int] = field(default_factory=list)
    """Granted pool blocks, from `first_block` on."""
    next_block: int = 0
    """Index in the prompt of the next block to announce."""
    closing: Closing | None = None
    link_id: str | None = None
    last_seq: int = 0
    num_pinned: int = 0
    """Pieces that were taken and are not packed yet."""
    outcome: LeaseOutcome | None = None

    @property
    def granted_end(self) -> int:
        return self.first_block + len(self.blocks)


class LeaseTable:
    """All leases of one P worker. Not thread-safe: the sender's lock guards it."""

    def __init__(self, *, lease_s: float, overlap: bool = True) -> None:
        self._lease_s = lease_s
        self._overlap = overlap
        self._live: dict[str, _Lease] = {}
        self._links: dict[str, _Link] = {}
        self._ended: OrderedDict[str, LeaseOutcome] = OrderedDict()

    def __len__(self) -> int:
        return len(self._live)

    def add_link(self, link_id: str, *, max_blocks: int, max_inflight: int) -> None:
        """A D may pull over it: messages of `max_blocks`, `max_inflight` of them unacknowledged."""
        assert link_id not in self._links
        self._links[link_id] = _Link(max_blocks, max_inflight)

    def has_link(self, link_id: str) -> bool:
        return link_id in self._links

    def is_live(self, transfer_id: str) -> bool:
        return transfer_id in self._live

    def offer(
        self, transfer_id: str, *, num_blocks: int, first_block: int, now: float, deadline: float
    ) -> None:
        """Promises the prompt's blocks [first_block, num_blocks) to one pull.

        Raises TransferError: repeated_transfer if the id was offered before, aborted if a cancel
        came first.
        """
        if transfer_id in self._ended:
            if self._ended[transfer_id] is LeaseOutcome.CANCELLED:
                raise TransferError(f"{transfer_id} was cancelled", reason="aborted")
            raise TransferError(f"{transfer_id} was used before", reason="repeated_transfer")
        if transfer_id in self._live:
            raise TransferError(f"{transfer_id} is in use", reason="repeated_transfer")
        assert 0 <= first_block <= num_blocks
        self._live[transfer_id] = _Lease(
            transfer_id,
            first_block,
            num_blocks,
            hard_deadline=deadline,
            deadline=min(deadline, now + self._lease_s),
        )

    def grant(self, transfer_id: str, first_block: int, blocks: Sequence[int]) -> str | None:
        """The prompt's blocks from `first_block` on are complete; they never change again.

        Returns the link that pulls them, if one does. A lease that ended takes nothing.
        """
        lease = self._live.get(transfer_id)
        if lease is None or lease.state is LeaseState.ENDING:
            return None
        assert first_block == lease.granted_end, "blocks are granted in order, without gaps"
        lease.blocks.extend(blocks)
        assert lease.granted_end <= lease.num_blocks
        return lease.link_id

    def close(
        self, transfer_id: str, first_tokens: Sequence[FirstToken], *, now: float
    ) -> str | None:
        """Everything is granted. Returns the link that pulls, if one does."""
        lease = self._live.get(transfer_id)
        if lease is None or lease.state is LeaseState.ENDING:
            return None
        assert lease.granted_end == lease.num_blocks, "closed before all blocks were granted"
        assert lease.closing is None, "closed twice"
        lease.closing = Closing(transfer_id, tuple(first_tokens), now)
        return lease.link_id

    def open_pull(self, link_id: str, transfer_id: str, *, num_held_blocks: int) -> None:
        """D pulls all but its leading blocks over this link.

        Raises TransferError: unknown_transfer, lease_expired, aborted or finished.
        """
        lease = self._live.get(transfer_id)
        if lease is None:
            raise self._refusal(transfer_id)
        if lease.state is not LeaseState.OFFERED:
            raise TransferError(f"{transfer_id} was pulled before", reason="unknown_transfer")
        self._move(lease, LeaseState.PULLING)
        lease.deadline = lease.hard_deadline
        lease.next_block = min(lease.num_blocks, max(lease.first_block, num_held_blocks))
        lease.link_id = link_id
        self._links[link_id].pulls[transfer_id] = lease

    def next_due(self, link_id: str) -> Piece | Closing | None:
        """What the link sends next: the oldest pull that has something goes first.

        A piece pins its lease until `packed`, and must be `announced` before or after; a closing
        must be told, then `closed`.
        """
        link = self._links[link_id]
        may_send = link.num_announced - link.num_acked < link.max_inflight
        for lease in link.pulls.values():
            if lease.state is not LeaseState.PULLING:
                continue
            ready = self._overlap or lease.closing is not None
            if ready and lease.next_block < lease.granted_end:
                if may_send:
                    return _take_piece(lease, link)
            elif lease.closing is not None:
                return lease.closing
        return None

    def announced(self, transfer_id: str) -> bool:
        """A piece that was taken gets its number, packed or not: its message is owed from now on.

        False if its lease ended while it was pinned: then nothing is announced.
        """
        lease = self._live[transfer_id]
        if lease.state is LeaseState.ENDING:
            return False
        link = self._link(lease)
        link.num_announced += 1
        lease.last_seq = link.num_announced
        return True

    def packed(self, transfer_id: str) -> LeaseEnded | None:
        """A pinned piece is in staging, or isn't wanted any more."""
        lease = self._live[transfer_id]
        assert lease.num_pinned > 0
        lease.num_pinned -= 1
        if lease.num_pinned:
            return None
        if lease.state is LeaseState.ENDING:
            assert lease.outcome is not None
            return self._finish(lease, lease.outcome)
        # D may have been faster than our thread
        return self._finish(lease, LeaseOutcome.COMPLETED) if self._is_done(lease) else None

    def closed(self, transfer_id: str, *, now: float) -> LeaseEnded | None:
        """The closing was announced; without a message owed, that completes the lease."""
        lease = self._live[transfer_id]
        self._move(lease, LeaseState.CLOSED)
        lease.deadline = min(lease.hard_deadline, now + self._lease_s)
        return self._finish(lease, LeaseOutcome.COMPLETED) if self._is_done(lease) else None

    def is_over(self, transfer_id: str) -> bool:
        """Whether nobody wants what is still pinned."""
        return self._live[transfer_id].state is LeaseState.ENDING

    def acked(self, link_id: str, seq: int, *, now: float) -> list[LeaseEnded]:
        """D is done with every message up to `seq`; TransferError (corrupt) for one never sent."""
        link = self._links[link_id]
        if not link.num_acked <= seq <= link.num_announced:
            raise TransferError(
                f"acknowledged {seq} of {link.num_announced} messages", reason="corrupt"
            )
        link.num_acked = seq
        ended = []
        for lease in list(link.pulls.values()):
            if lease.state is not LeaseState.CLOSED:
                continue
            if self._is_done(lease):
                ended.append(self._finish(lease, LeaseOutcome.COMPLETED))
            else:
                lease.deadline = min(lease.hard_deadline, now + self._lease_s)
        return ended

    def link_of(self, transfer_id: str) -> str | None:
        """The link that pulls a lease which is not over yet."""
        lease = self._live.get(transfer_id)
        return None if lease is None or lease.state is LeaseState.ENDING else lease.link_id

    def end(self, transfer_id: str, outcome: LeaseOutcome) -> LeaseEnded | None:
        """Ends a lease. Idempotent; cancelling an id not offered yet refuses it for ever.

        Returns None if there is nothing to end, or if a piece is pinned: then `packed` does.
        """
        lease = self._live.get(transfer_id)
        if lease is None:
            if outcome is LeaseOutcome.CANCELLED and transfer_id not in self._ended:
                self._remember(transfer_id, outcome)
            return None
        if lease.state is LeaseState.ENDING:
            return None
        if lease.num_pinned:
            lease.outcome = outcome
            self._move(lease, LeaseState.ENDING)
            return None
        return self._finish(lease, outcome)

    def end_link(self, link_id: str) -> list[LeaseEnded]:
        """The link is dead: ends every lease that was pulled over it. Idempotent."""
        link = self._links.pop(link_id, None)
        leases = [] if link is None else list(link.pulls)
        ended = [self.end(transfer_id, LeaseOutcome.PEER_LOST) for transfer_id in leases]
        return [event for event in ended if event is not None]

    def expired(self, now: float) -> list[str]:
        """Leases whose deadline has come; the caller ends them."""
        return [
            lease.transfer_id
            for lease in self._live.values()
            if lease.deadline <= now and lease.state is not LeaseState.ENDING
        ]

    def next_deadline(self) -> float | None:
        """When `expired` will next have something to say."""
        live = (lease for lease in self._live.values() if lease.state is not LeaseState.ENDING)
        return min((lease.deadline for lease in live), default=None)

    def live_ids(self) -> list[str]:
        return list(self._live)

    def _finish(self, lease: _Lease, outcome: LeaseOutcome) -> LeaseEnded:
        self._move(lease, LeaseState.ENDED)
        del self._live[lease.transfer_id]
        if lease.link_id in self._links:
            del self._links[lease.link_id].pulls[lease.transfer_id]
        self._remember(lease.transfer_id, outcome)
        return LeaseEnded(lease.transfer_id, outcome)

    def _is_done(self, lease: _Lease) -> bool:
        """Everything was told, packed and acknowledged."""
        is_acked = lease.last_seq <= self._link(lease).num_acked
        return lease.state is LeaseState.CLOSED and is_acked and not lease.num_pinned

    def _link(self, lease: _Lease) -> _Link:
        assert lease.link_id is not None
        return self._links[lease.link_id]

    def _move(self, lease: _Lease, state: LeaseState) -> None:
        """The only place where a lease changes state."""
        assert state in _LEGAL[lease.state], f"{lease.transfer_id}: {lease.state} to {state}"
        assert state is not LeaseState.ENDED or not lease.num_pinned
        lease.state = state

    def _remember(self, transfer_id: str, outcome: LeaseOutcome) -> None:
        self._ended[transfer_id] = outcome
        while len(self._ended) > _MAX_REMEMBERED:
            self._ended.popitem(last=False)

    def _refusal(self, transfer_id: str) -> TransferError:
        match self._ended.get(transfer_id):
            case None:
                return TransferError(f"no lease {transfer_id} here", reason="unknown_transfer")
            case LeaseOutcome.EXPIRED:
                return TransferError(f"the lease {transfer_id} expired", reason="lease_expired")
            case LeaseOutcome.CANCELLED:
                return TransferError(f"{transfer_id} was cancelled", reason="aborted")
            case LeaseOutcome.FINISHED:
                return TransferError(f"{transfer_id} needs no pull", reason=FINISHED)
            case _:
                return TransferError(f"{transfer_id} was pulled before", reason="unknown_transfer")


def _take_piece(lease: _Lease, link: _Link) -> Piece:
    first = lease.next_block
    end = min(lease.granted_end, first + link.max_blocks)
    lease.next_block = end
    lease.num_pinned += 1
    blocks = lease.blocks[first - lease.first_block : end - lease.first_block]
    return Piece(link.num_announced + 1, lease.transfer_id, first, tuple(blocks))
