"""In which order cached blocks are evicted, and which of them are pinned, for whom and until when.

    unpinned, least recently used first > pinned, least recently used first

A pin is a property of a published block, held or not, and no holder: a pinned block that nobody
holds is cached like any other, and is only evicted when no other is left. So pins never take a
block from a sequence. A block has one pin, that of whoever pinned it last for the longest.

Plain bookkeeping: moments are passed in, of any one clock that never goes back. Nothing is ever
sorted or scanned: blocks of one lifetime expire in the order in which they were pinned, so each
lifetime has a queue of its own.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kv_cache.prefix_index import PrefixIndex


@dataclass(frozen=True, slots=True)
class _Pin:
    owner: str
    ttl_s: float
    until: float


class EvictionOrder:
    """The cached blocks of a pool, and its pins."""

    def __init__(self, max_pinned: int) -> None:
        self.max_pinned = max_pinned
        """Blocks that may be pinned at once."""
        self.num_dropped = 0
        """Pins that ended early because their block was needed."""
        self._unpinned: OrderedDict[int, None] = OrderedDict()
        self._kept: OrderedDict[int, None] = OrderedDict()
        # Of all pinned blocks, those that somebody holds included.
        self._pins: dict[int, _Pin] = {}
        # Lifetime > its blocks, next to expire first.
        self._queues: dict[float, OrderedDict[int, None]] = {}
        self._num_owned: Counter[str] = Counter()

    def __len__(self) -> int:
        """Blocks that `evict` could give."""
        return len(self._unpinned) + len(self._kept)

    def __contains__(self, block: int) -> bool:
        return block in self._unpinned or block in self._kept

    def add(self, block: int) -> None:
        """Nobody holds it any more: it is the most recently used one."""
        self._list_of(block)[block] = None

    def remove(self, block: int) -> None:
        """Somebody holds it again; its pin stays."""
        del self._list_of(block)[block]

    def evict(self) -> int:
        """Takes the next victim out, and its pin away if it has one."""
        if self._unpinned:
            return self._unpinned.popitem(last=False)[0]
        block, _ = self._kept.popitem(last=False)
        self._unpin(block)
        self.num_dropped += 1
        return block

    def pin(
        self,
        blocks: Sequence[int],
        *,
        owner: str,
        ttl_s: float,
        now: float,
        max_owned: int | None = None,
    ) -> float | None:
        """Pins published `blocks`, in sequence order, for `ttl_s` from `now` on; or longer, if they
        are already.

        None, and nothing changes, if there would be more than `max_pinned` pins, or `max_owned` of
        this owner. Else by how many seconds the blocks' pins now last longer, added up.
        """
        self.expire(now)
        if not self._has_room(blocks, owner, max_owned):
            return None
        gained_s, until = 0.0, now + ttl_s
        for block in reversed(blocks):
            known = self._pins.get(block)
            if known is not None and known.until >= until:
                continue
            gained_s += until - (now if known is None else known.until)
            if known is not None:
                self._unpin(block)
            elif block in self._unpinned:
                del self._unpinned[block]
                self._kept[block] = None
            self._pins[block] = _Pin(owner, ttl_s, until)
            self._queues.setdefault(ttl_s, OrderedDict())[block] = None
            self._num_owned[owner] += 1
        return gained_s

    def expire(self, now: float) -> None:
        """Ends the pins whose time is over; of one prefix, the tail is evicted before the head."""
        over: list[int] = []
        for queue in self._queues.values():
            while queue and self._pins[block := next(iter(queue))].until <= now:
                self._unpin(block)
                over.append(block)
        for block in over:
            if block in self._kept:
                del self._kept[block]
                self._unpinned[block] = None

    def next_expiry(self) -> float | None:
        """When `expire` has something to do."""
        firsts = [self._pins[next(iter(queue))].until for queue in self._queues.values() if queue]
        return min(firsts, default=None)

    @property
    def pinned_by_owner(self) -> dict[str, int]:
        """How many blocks are pinned for whom."""
        return dict(self._num_owned)

    def check_integrity(self, published: PrefixIndex) -> None:
        """Recomputes what is counted; AssertionError names the first inconsistency."""
        assert not self._unpinned.keys() & self._pins.keys(), "a pinned block is not kept"
        assert self._kept.keys() <= self._pins.keys(), "a block is kept without a pin"
        assert len(self._pins) <= self.max_pinned, "more blocks are pinned than may be"
        for block in self._pins:
            assert block in published, f"block {block} is pinned but can't be found"
        owned = Counter(pin.owner for pin in self._pins.values())
        assert owned == self._num_owned, f"pins counted as {self._num_owned}, {owned} are"
        queued = {(block, ttl_s) for ttl_s, queue in self._queues.items() for block in queue}
        pinned = {(block, pin.ttl_s) for block, pin in self._pins.items()}
        assert queued == pinned, "pins and their queues differ"

    def _has_room(self, blocks: Iterable[int], owner: str, max_owned: int | None) -> bool:
        """Blocks that are pinned anyway need none."""
        known = [self._pins.get(block) for block in blocks]
        num_new = sum(pin is None for pin in known)
        if num_new and len(self._pins) + num_new > self.max_pinned:
            return False
        num_gained = sum(pin is None or pin.owner != owner for pin in known)
        if max_owned is None or not num_gained:
            return True
        return self._num_owned[owner] + num_gained <= max_owned

    def _list_of(self, block: int) -> OrderedDict[int, None]:
        return self._kept if block in self._pins else self._unpinned

    def _unpin(self, block: int) -> None:
        pin = self._pins.pop(block)
        del self._queues[pin.ttl_s][block]
        self._num_owned[pin.owner] -= 1
        if not self._num_owned[pin.owner]:
            del self._num_owned[pin.owner]
