"""How long cancelled attempts go on holding blocks: from a cancel's arrival to the last one free.

cancel          noted with its time, handed to the step loop, which handles it between steps
nothing held    it came too late or too early: not counted
last one free   counted. At once for sequences and imports; a lease ends a turn later, or when
                the message that is being packed out of its blocks is ready
"""

from __future__ import annotations

from core.clock import Clock
from core.histogram import Durations, Histogram
from engine.role import Cancel
from engine.step_loop import StepLoop
from kv_cache.block_pool import BlockPool, Holder, HolderKind
from kv_transfer.events import LeaseEnded

BOUNDS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0)


class CancelWatch:
    """Between those who tell the step loop of ends, and the step loop. Thread-safe."""

    def __init__(self, step_loop: StepLoop, pool: BlockPool, clock: Clock) -> None:
        self._step_loop = step_loop
        self._pool = pool
        self._clock = clock
        self._arrived: dict[str, float] = {}
        self._freed = Durations(BOUNDS_S)

    def cancel(self, transfer_id: str) -> None:
        """Cancels the whole attempt."""
        # Noted before anything is posted: an end of its lease that is posted later then sees it.
        self._arrived.setdefault(transfer_id, self._clock.now())
        self._step_loop.call(lambda: self._forget_unless_held(transfer_id))
        self._step_loop.post(Cancel(transfer_id))
        self._step_loop.call(lambda: self._observe_if_free(transfer_id))

    def post(self, message: object) -> None:
        """Hands on what a transfer has to say."""
        self._step_loop.post(message)
        if isinstance(message, LeaseEnded) and message.transfer_id in self._arrived:
            self._step_loop.call(lambda: self._observe_if_free(message.transfer_id))

    def histogram(self) -> Histogram:
        """Of all cancels that freed something."""
        return self._freed.histogram()

    def _forget_unless_held(self, transfer_id: str) -> None:
        if not self._holds_blocks(transfer_id):
            self._arrived.pop(transfer_id, None)

    def _observe_if_free(self, transfer_id: str) -> None:
        if self._holds_blocks(transfer_id):
            return
        arrived_at = self._arrived.pop(transfer_id, None)
        if arrived_at is not None:
            self._freed.observe(self._clock.now() - arrived_at)

    def _holds_blocks(self, transfer_id: str) -> bool:
        """Called in the step loop's thread."""
        return any(_attempt_of(holder) == transfer_id for holder, _ in self._pool.holders())


def _attempt_of(holder: Holder) -> str:
    """A sequence is called by its attempt and its choice, everybody else by the transfer."""
    is_sequence = holder.kind is HolderKind.SEQUENCE
    return holder.id.rpartition("/")[0] if is_sequence else holder.id
