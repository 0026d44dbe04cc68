"""Choices that leave a decode worker with their KV, and what is kept for whoever takes them.

leave     all of the sequence's blocks go under a lease of a new id, complete and closed at once:
          the last token, which has no KV yet, is what a first token is after a prefill
pulled, expired, link lost: the blocks are the pool's again
cancel    of the lease, or of the attempt that the choices were part of
"""

from __future__ import annotations

from core.handoff import Moved
from engine.kv_lender import KVLender
from engine.sequence import Sequence, SequenceStatus
from kv_transfer.events import FirstToken, LeaseEnded


class Departures:
    """The leases of choices that left, by transfer id. Without a lender nothing leaves with KV."""

    def __init__(self, lender: KVLender | None) -> None:
        self._lender = lender
        self._attempts: dict[str, str] = {}
        """The attempt that each lease's choice was part of."""

    def __len__(self) -> int:
        return len(self._attempts)

    def may_take(self, sequence: Sequence) -> bool:
        """Whether the sequence has, or after its next step will have, KV worth taking along."""
        has_kv = sequence.status is SequenceStatus.RUNNING and sequence.num_uncomputed == 1
        return has_kv and self._lender is not None

    def leave(self, sequence: Sequence, deadline: float) -> Moved:
        """Lends the KV of all tokens but the last; the caller ends the sequence.

        Only right after a step of the sequence: then all ranks have what came before it in its
        blocks, be it unpacked, copied or computed. `deadline` is the request's.
        """
        assert self._lender is not None and self.may_take(sequence)
        (choice,) = sequence.choices
        attempt = sequence.transfer_id
        transfer_id = f"{attempt}+{choice}"
        self._attempts[transfer_id] = attempt
        num_tokens = sequence.num_computed
        handoff = self._lender.offer(transfer_id, num_tokens=num_tokens, deadline=deadline)
        table = sequence.block_table.view()
        blocks = table[handoff.first_block : handoff.num_blocks].tolist()
        self._lender.grant(transfer_id, handoff.first_block, blocks)
        last = FirstToken(choice, sequence.token_ids[-1], finished=False)
        self._lender.close(transfer_id, (last,))
        return Moved(attempt, (choice,), handoff)

    def cancel(self, transfer_id: str) -> None:
        """Ends this lease, or all leases of this attempt's choices."""
        for lease, attempt in self._attempts.items():
            if self._lender is not None and transfer_id in (lease, attempt):
                self._lender.cancel(lease)

    def ended(self, message: LeaseEnded) -> None:
        assert self._lender is not None
        del self._attempts[message.transfer_id]
        self._lender.ended(message)
