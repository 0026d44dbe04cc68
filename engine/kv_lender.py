"""A sequence's KV lent to another worker: the lease's blocks in the pool, and its offer to pulls.

offer     pulls of the transfer are welcome; the receipt says where from
grant     completed blocks are kept under the lease, whoever else lets go of them, and may be sent
close     everything is granted
end       pulled, aborted, cancelled, expired or link lost: the blocks are the pool's again
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from collections.abc import Set
from dataclasses import dataclass
from typing import Protocol

from core.handoff import Handoff
from kv_cache.block_pool import BlockPool, Holder, HolderKind
from kv_cache.window import num_blocks_outside
from kv_transfer.events import FirstToken, LeaseEnded


class KVSender(Protocol):
    """The sending half of `kv_transfer` as roles use it; every method returns at once."""

    def offer(
        self, transfer_id: str, *, num_blocks: int, first_block: int, deadline: float
    ) -> None:
        """Opens a lease: pulls of this id are welcome until it ends."""
        ...

    def grant(self, transfer_id: str, first_block: int, blocks: Seq[int]) -> None:
        """The sequence's blocks from index `first_block` on are complete, in these pool blocks."""
        ...

    def close(self, transfer_id: str, first_tokens: Seq[FirstToken]) -> None:
        """Everything is granted; the pull ends once it has been sent."""
        ...

    def finish(self, transfer_id: str) -> None:
        """Every choice ended with its first token: nobody needs the KV. `LeaseEnded` follows."""
        ...

    def cancel(self, transfer_id: str) -> None:
        """Ends the lease early. `LeaseEnded` follows, as after every other end."""
        ...


@dataclass(frozen=True, slots=True)
class WorkerIdentity:
    """Who this worker is to its peers."""

    worker_id: str
    epoch: str
    address: str
    compat_key: str


class KVLender:
    """All leases of one role, by transfer id. Owned by the step loop's thread."""

    def __init__(
        self,
        identity: WorkerIdentity,
        pool: BlockPool,
        sender: KVSender,
        *,
        window: int | None,
        lease_s: float,
    ) -> None:
        self._identity = identity
        self._pool = pool
        self._sender = sender
        self._window = window
        self._lease_s = lease_s
        self._open: set[str] = set()

    @property
    def open(self) -> Set[str]:
        """Leases that are not over."""
        return self._open

    def offer(self, transfer_id: str, *, num_tokens: int, deadline: float) -> Handoff:
        """Opens a lease on the KV of a sequence's first `num_tokens` tokens."""
        identity, size = self._identity, self._pool.block_size
        first = num_blocks_outside(num_tokens, window=self._window, block_size=size)
        handoff = Handoff(
            transfer_id=transfer_id,
            worker_id=identity.worker_id,
            epoch=identity.epoch,
            address=identity.address,
            compat_key=identity.compat_key,
            num_tokens=num_tokens,
            first_block=first,
            num_blocks=-(-num_tokens // size),
            lease_s=self._lease_s,
        )
        self._open.add(transfer_id)
        self._sender.offer(
            transfer_id, num_blocks=handoff.num_blocks, first_block=first, deadline=deadline
        )
        return handoff

    def grant(self, transfer_id: str, first_block: int, blocks: Seq[int]) -> None:
        """Keeps the sequence's blocks from index `first_block` on for whoever pulls.

        Their content is complete, and nobody writes into them any more.
        """
        self._pool.share(_holder(transfer_id), blocks)
        self._sender.grant(transfer_id, first_block, blocks)

    def close(self, transfer_id: str, first_tokens: Seq[FirstToken]) -> None:
        self._sender.close(transfer_id, first_tokens)

    def finish(self, transfer_id: str) -> None:
        self._sender.finish(transfer_id)

    def cancel(self, transfer_id: str) -> None:
        """Ends the lease soon, if it is open."""
        if transfer_id in self._open:
            self._sender.cancel(transfer_id)

    def ended(self, message: LeaseEnded) -> None:
        """Nobody reads the blocks any more: gives them back."""
        self._open.discard(message.transfer_id)
        self._pool.release(_holder(message.transfer_id))


def _holder(transfer_id: str) -> Holder:
    return Holder(HolderKind.LEASE, transfer_id)
