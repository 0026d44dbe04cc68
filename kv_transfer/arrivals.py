"""D's receiving thread of one link: announced messages in, blocks in staging out.

expect     the control stream announced a message, or a close after the messages before it
post       its receive, into its own slot, as soon as it is known, on all ranks
wait       for the oldest, on all ranks, at most timeout_s: it was announced, so it is owed
verify     checksums, if P sent any: a message that arrived otherwise fails its pull
deliver    part by part to the step loop, or throw away what nobody wants any more
release    by the step loop: with its last part a slot is free, and what lies before the first slot
           still in use is acknowledged: all of it when no other is, else half the slots at once
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from core.clock import Clock
from core.errors import TransferError
from kv_transfer.checksum import checksum
from kv_transfer.events import BlocksArrived, FirstToken
from kv_transfer.link import Pending
from kv_transfer.link_plan import LinkPlan
from kv_transfer.parts import parts_of
from kv_transfer.pull_registry import PullRegistry
from kv_transfer.rank_link import RankArrival, RankLink
from kv_transfer.staging import Lane, Staging, assemble
from kv_transfer.stats import TransferStats

_IDLE_WAIT_S = 60.0
"""Upper bound of one wait for announcements; nothing depends on its length."""


@dataclass(frozen=True, slots=True)
class Announced:
    """Message `seq` follows on the data links."""

    seq: int
    transfer_id: str
    first_block: int
    num_blocks: int
    size_bytes: int
    checksums: tuple[int, ...] = ()
    """Of the bytes on each data link; none: they are not verified."""


@dataclass(frozen=True, slots=True)
class AnnouncedClose:
    """The transfer is complete once all messages announced before have arrived."""

    transfer_id: str
    first_tokens: tuple[FirstToken, ...]
    chunk_ended_at: float
    """When P's last chunk ended, on our clock."""


@dataclass(frozen=True, slots=True)
class _Posted:
    """Blocks of a message that are awaited, here and on the other ranks; or a close in its place.

    `blocks` counts within the message.
    """

    item: Announced | AnnouncedClose
    blocks: range = range(0)
    here: Sequence[Pending] = ()
    elsewhere: Sequence[RankArrival] = ()


class Arrivals:
    """The data side of a link. `run` is the thread's; the rest is thread-safe and never waits.

    `acknowledge` is called with the number of the last message that P may forget, `give_up` with a
    transfer that failed here, of which P need send no more, and `others_unpack(seq, blocks)` by the
    step loop.
    """

    def __init__(
        self,
        link_id: str,
        registry: PullRegistry,
        plan: LinkPlan,
        *,
        acknowledge: Callable[[int], None],
        give_up: Callable[[str], None],
        others_unpack: Callable[[int, Sequence[int]], None],
        timeout_s: float,
        clock: Clock,
        stats: TransferStats,
    ) -> None:
        self._link_id = link_id
        self._registry = registry
        self._plan = plan
        self._acknowledge = acknowledge
        self._give_up = give_up
        self._others_unpack = others_unpack
        self._timeout_s = timeout_s
        self._clock = clock
        self._stats = stats
        self._changed = threading.Condition()
        self._expected: deque[Announced | AnnouncedClose] = deque()
        self._stopped = False
        self._num_announced = 0
        self._num_released = 0
        self._num_acked = 0
        self._released: set[int] = set()
        self._num_unreleased: dict[int, int] = {}
        """Parts of each message that are awaited, or that the step loop has not released."""
        self._delivered: set[tuple[int, int]] = set()
        """Parts that the step loop has not released: message, and first block within it."""
        self._when_released: Callable[[], None] | None = None

    def expect(self, item: Announced | AnnouncedClose) -> None:
        """Takes what P announced; TransferError (corrupt) if it breaks the protocol."""
        with self._changed:
            if isinstance(item, Announced):
                self._check(item)
                self._num_announced = item.seq
            self._expected.append(item)
            self._changed.notify()

    def stop(self) -> None:
        """Ends `run` at its next step. Idempotent."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def when_released(self, action: Callable[[], None]) -> None:
        """Calls `action` once all that was delivered is released; `run` has ended."""
        with self._changed:
            if self._delivered:
                self._when_released = action
                return
        action()

    def run(
        self, lanes: Sequence[Lane], whole: Staging | None, others: Sequence[RankLink] = ()
    ) -> None:
        """Receives until stopped. `whole`: where the shares of several lanes are put together.

        Raises TransferError: timeout or peer_lost; peer_lost also when stopped.
        """
        posted: deque[_Posted] = deque()
        while True:
            for item in self._take(wait=not posted):
                posted.extend(self._post(lanes, others, item))
            if posted:
                oldest = posted.popleft()
                # Our own first: P's rank may be at them, and come to the others' only then
                for pending in oldest.here:
                    pending.wait(self._timeout_s)
                intact = [arrival.wait() for arrival in oldest.elsewhere]
                self._deliver(oldest, lanes, whole, all(intact))

    def _check(self, item: Announced) -> None:
        in_order = item.seq == self._num_announced + 1
        has_slot = item.seq - self._num_acked <= self._plan.size.num_slots
        fits = 0 < item.num_blocks <= self._plan.size.num_blocks
        sized = item.size_bytes == item.num_blocks * self._plan.bytes_per_block
        summed = len(item.checksums) in (0, len(self._plan.routes))
        if not (in_order and has_slot and fits and sized and summed):
            raise TransferError(
                f"P announced {item} after {self._num_announced} messages, "
                f"{self._num_acked} of them acknowledged",
                reason="corrupt",
            )

    def _take(self, *, wait: bool) -> list[Announced | AnnouncedClose]:
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: bool(self._expected) or self._stopped, _IDLE_WAIT_S)
            if self._stopped:
                raise TransferError("the link is closed", reason="peer_lost")
            items = list(self._expected)
            self._expected.clear()
            return items

    def _post(
        self, lanes: Sequence[Lane], others: Sequence[RankLink], item: Announced | AnnouncedClose
    ) -> list[_Posted]:
        """Starts all receives of a message. One with checksums, which are of all, comes whole."""
        if isinstance(item, AnnouncedClose):
            return [_Posted(item)]
        seq, num_blocks, sums = item.seq, item.num_blocks, item.checksums
        elsewhere = [
            other.receive(seq, num_blocks, tuple(sums[spec.index] for spec in other.lanes if sums))
            for other in others
        ]
        slots = [(lane.link, lane.staging.slot(seq, num_blocks)) for lane in lanes]
        parts = [
            _Posted(item, part, [link.recv(slot[part.start : part.stop]) for link, slot in slots])
            for part in parts_of(self._plan, num_blocks)
        ]
        if sums or elsewhere:
            here = [pending for part in parts for pending in part.here]
            parts = [_Posted(item, range(num_blocks), here, elsewhere)]
        self._num_unreleased[seq] = len(parts)
        return parts

    def _deliver(
        self, posted: _Posted, lanes: Sequence[Lane], whole: Staging | None, intact_elsewhere: bool
    ) -> None:
        item, blocks = posted.item, posted.blocks
        if isinstance(item, AnnouncedClose):
            age_s = self._clock.now() - item.chunk_ended_at
            self._registry.closed(self._link_id, item.transfer_id, item.first_tokens, age_s)
            return
        if blocks.stop == item.num_blocks:
            self._stats.message(item.size_bytes)
        with self._changed:
            self._delivered.add((item.seq, blocks.start))
        if not (intact_elsewhere and _is_intact(item, lanes)):
            self._corrupted(item)
            return
        message = assemble(lanes, whole, item.seq, item.num_blocks)
        event = BlocksArrived(
            item.transfer_id,
            item.first_block + blocks.start,
            len(blocks),
            message[blocks.start : blocks.stop],
            partial(self._release, item.seq, blocks.start),
            partial(self._others_unpack, item.seq),
        )
        if not self._registry.arrived(self._link_id, event):
            self._release(item.seq, blocks.start)

    def _corrupted(self, item: Announced) -> None:
        """Fails the pull before its blocks are touched. The link is sound: sizes were right."""
        message = f"blocks from {item.first_block} on arrived with other bytes than P sent"
        self._registry.failed(self._link_id, item.transfer_id, "corrupt", message)
        self._give_up(item.transfer_id)
        self._release(item.seq, 0)

    def _release(self, seq: int, first_block: int) -> None:
        """The message's blocks from this one on are out of its slot. Idempotent."""
        action = None
        with self._changed:
            if (seq, first_block) not in self._delivered:
                return
            self._delivered.remove((seq, first_block))
            self._num_unreleased[seq] -= 1
            if not self._num_unreleased[seq]:
                del self._num_unreleased[seq]
                self._released.add(seq)
                self._acknowledge_in_order()
            if not self._delivered:
                action, self._when_released = self._when_released, None
        if action is not None:
            action()

    def _acknowledge_in_order(self) -> None:
        """Several messages at once, while P has slots left for as many: each word costs both sides
        a fraction of a millisecond. All of them as soon as nothing is left to be released."""
        while self._num_released + 1 in self._released:
            self._num_released += 1
            self._released.remove(self._num_released)
        num_owed = self._num_released - self._num_acked
        all_released = self._num_released == self._num_announced
        if num_owed and (all_released or num_owed >= self._plan.size.num_slots // 2):
            self._num_acked = self._num_released
            self._acknowledge(self._num_acked)


def _is_intact(item: Announced, lanes: Sequence[Lane]) -> bool:
    """Whether the bytes are those that P packed, as far as P told."""
    sums = item.checksums
    slots = ((lane.index, lane.staging.slot(item.seq, item.num_blocks)) for lane in lanes)
    return not sums or all(sums[index] == checksum(slot) for index, slot in slots)
