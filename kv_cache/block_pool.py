"""Who holds which KV block. Plain bookkeeping: no tensors, no event loop, no clock.

A block's state is derived from its holders, never stored beside them:

    free ----allocate----> held: importing > leased > running ----release----> free    (unpublished)
      ^                      ^    (the strongest kind of holder names the state)  |
      |                      +---------------------- share ----------+           |
      +--- evicted by allocate --- cached (evictable, LRU) <---------+-----------+     (published)

* `publish` says that a held block's content is complete and under which hash it is found.
* `move` turns an import into a sequence without the blocks ever being unheld.
* `release` is the one way out, for finish, cancel, error, preemption and expiry alike.
* `pin` keeps published blocks from being evicted for a time, but only as long as others are left.

All changes of holders go through `BlockPool._rehold`, which refuses what would corrupt somebody's
KV. No operation scans the pool: the cost is that of the blocks named.
"""

from __future__ import annotations

import enum
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from core.errors import TandemError
from kv_cache.eviction_order import EvictionOrder
from kv_cache.prefix_index import PrefixIndex


class HolderKind(enum.StrEnum):
    """Why a block is held."""

    SEQUENCE = "sequence"
    LEASE = "lease"
    IMPORT = "import"


class BlockState(enum.StrEnum):
    """What a block is doing; the states' sizes add up to the pool's."""

    IMPORTING = "importing"
    LEASED = "leased"
    RUNNING = "running"
    CACHED = "cached"
    FREE = "free"


_STATE_BY_STRENGTH = (
    (HolderKind.IMPORT, BlockState.IMPORTING),
    (HolderKind.LEASE, BlockState.LEASED),
    (HolderKind.SEQUENCE, BlockState.RUNNING),
)


@dataclass(frozen=True, slots=True)
class Holder:
    """One reason to keep blocks. `id` names the sequence, or the transfer of a lease or import."""

    kind: HolderKind
    id: str


class OutOfBlocksError(TandemError):
    """The pool can't give that many blocks now; the scheduler waits or preempts."""

    code = "out_of_blocks"
    http_status = 503
    retryable = True

    def __init__(self, *, num_needed: int, num_available: int) -> None:
        super().__init__(f"{num_needed} KV blocks needed, {num_available} available")
        self.num_needed = num_needed
        self.num_available = num_available


class BlockPool:
    """The KV blocks 0 .. num_blocks-1 of one worker and their holders."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        max_pinned_blocks: int | None = None,
        on_first_use: Callable[[int], None] | None = None,
    ) -> None:
        """`max_pinned_blocks` None: all. `on_first_use` is told of each block that is handed out
        for the first time: in order."""
        assert num_blocks > 0 and block_size > 0
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self._on_first_use = on_first_use
        self._num_used = 0
        # Dicts as ordered sets: blocks in the order in which the holder got them.
        self._blocks_of: dict[Holder, dict[int, None]] = {}
        # How many holders of each kind a block has.
        self._num_holders = {kind: [0] * num_blocks for kind in HolderKind}
        self._num_by_state = {state: 0 for _, state in _STATE_BY_STRENGTH}
        # First in, first out: a block freed just now is reused last.
        self._free = deque(range(num_blocks))
        # Unheld published blocks.
        self._cached = EvictionOrder(num_blocks if max_pinned_blocks is None else max_pinned_blocks)
        self._index = PrefixIndex()

    @property
    def num_available(self) -> int:
        """Blocks that `allocate` could hand out now: free and cached."""
        return len(self._free) + len(self._cached)

    def allocate(self, holder: Holder, num_blocks: int) -> list[int]:
        """Gives `holder` that many unshared blocks of undefined content.

        Takes free blocks first, then evicts the least recently used cached ones, pinned ones last.
        All or nothing: raises OutOfBlocksError and changes nothing if there aren't enough.
        """
        if num_blocks > self.num_available:
            raise OutOfBlocksError(num_needed=num_blocks, num_available=self.num_available)
        blocks = [self._take() for _ in range(num_blocks)]
        for block in blocks:
            self._rehold(block, add=holder)
        return blocks

    def share(self, holder: Holder, blocks: Sequence[int]) -> None:
        """Makes `holder` one more holder of blocks whose content is, or is becoming, known.

        The blocks are held by others or cached (`match`). Blocks still being imported can't be
        shared before they are published: nobody may read what hasn't arrived.
        """
        for block in blocks:
            state = self._state(block)
            assert state is not BlockState.FREE, f"block {block} is free and can't be shared"
            assert (
                state is not BlockState.IMPORTING
                or holder.kind is HolderKind.IMPORT
                or block in self._index
            ), f"block {block} is still being imported and can't be shared with {holder}"
        for block in blocks:
            self._rehold(block, add=holder)

    def release(self, holder: Holder, blocks: Iterable[int] | None = None) -> None:
        """Lets go of `blocks`, or of everything `holder` has; what it doesn't hold is ignored.

        `blocks` are in sequence order. Published blocks that nobody holds any more become cached,
        the tail to be evicted before the head it depends on; others become free.
        """
        held = self._blocks_of.get(holder)
        if held is None:
            return
        named = list(held if blocks is None else dict.fromkeys(b for b in blocks if b in held))
        for block in reversed(named):
            self._rehold(block, remove=holder)

    def move(self, source: Holder, target: Holder) -> None:
        """Hands all blocks of `source` on to `target`, after those `target` has already.

        The blocks are held throughout, so nothing can take them in between.
        """
        assert source != target, f"{source} can't move to itself"
        assert target.kind is not HolderKind.IMPORT, "known content can't become an import"
        for block in list(self._blocks_of.get(source, ())):
            if self.is_held_by(target, block):
                self._rehold(block, remove=source)
            else:
                self._rehold(block, remove=source, add=target)

    def publish(self, block: int, block_hash: bytes) -> bool:
        """Says that held `block` is complete and found under `block_hash` from now on.

        False, and no effect, if another block is found there (the first publisher wins) or prefix
        caching is off.
        """
        assert self.num_holders(block) > 0, f"block {block} is published but nobody holds it"
        return self.enable_prefix_caching and self._index.insert(block, block_hash)

    def match(self, hashes: Iterable[bytes]) -> list[int]:
        """Blocks of the longest known prefix, held or cached. Holds nothing: `share` them next."""
        return self._index.match(hashes)

    def pin(
        self,
        hashes: Sequence[bytes],
        *,
        owner: str,
        ttl_s: float,
        now: float,
        max_owned: int | None = None,
    ) -> float | None:
        """Keeps the blocks of a prefix from being evicted before others, for `ttl_s` from `now` on.

        None, and nothing changes, if not all of it is published, or more blocks would be pinned
        than may be: `max_pinned_blocks` of the pool, `max_owned` of this owner. Else by how many
        seconds its blocks' pins now last longer, added up.
        """
        blocks = self._index.match(hashes)
        if len(blocks) < len(hashes):
            return None
        return self._cached.pin(blocks, owner=owner, ttl_s=ttl_s, now=now, max_owned=max_owned)

    def expire_pins(self, now: float) -> None:
        """Ends the pins whose time is over."""
        self._cached.expire(now)

    def next_pin_expiry(self) -> float | None:
        """When `expire_pins` has something to do."""
        return self._cached.next_expiry()

    def pinned_by_owner(self) -> dict[str, int]:
        """How many blocks are pinned for whom, in whatever state they are."""
        return self._cached.pinned_by_owner

    @property
    def num_pins_dropped(self) -> int:
        """Pins that ended early because there was no other block left."""
        return self._cached.num_dropped

    def holds(self, holder: Holder) -> tuple[int, ...]:
        """The holder's blocks in the order in which it got them."""
        return tuple(self._blocks_of.get(holder, ()))

    def is_held_by(self, holder: Holder, block: int) -> bool:
        """Whether `holder` still holds `block`: to be asked before anything is written into it."""
        return block in self._blocks_of.get(holder, ())

    def num_holders(self, block: int) -> int:
        """How many holders `block` has; a block with more than one must not be written."""
        return sum(counts[block] for counts in self._num_holders.values())

    def holders(self) -> list[tuple[Holder, int]]:
        """Everybody who holds blocks, and how many."""
        return [(holder, len(blocks)) for holder, blocks in self._blocks_of.items()]

    def blocks_by_state(self) -> dict[str, int]:
        """Number of blocks in each state, from kept counts; they add up to `num_blocks`."""
        counts = {state.value: number for state, number in self._num_by_state.items()}
        counts[BlockState.CACHED.value] = len(self._cached)
        counts[BlockState.FREE.value] = len(self._free)
        return counts

    def check_integrity(self) -> None:
        """Recomputes everything from the holders; AssertionError names the first inconsistency."""
        self._index.check_integrity()
        self._cached.check_integrity(self._index)
        self._check_holder_counts()
        self._check_unheld()
        states = Counter(self._state(block) for block in range(self.num_blocks))
        for state, number in self.blocks_by_state().items():
            actual = states[BlockState(state)]
            assert number == actual, f"{number} blocks counted as {state}, {actual} are"

    def _take(self) -> int:
        """A block that nobody holds, off its list and out of the index."""
        if self._free:
            block = self._free.popleft()
            if block == self._num_used:
                self._num_used += 1
                if self._on_first_use is not None:
                    self._on_first_use(block)
            return block
        block = self._cached.evict()
        self._index.remove(block)
        return block

    def _rehold(
        self, block: int, *, remove: Holder | None = None, add: Holder | None = None
    ) -> None:
        """Changes who holds `block`: the only function that does."""
        before = self._state(block)
        if remove is not None:
            self._drop_holder(block, remove)
        if add is not None:
            self._add_holder(block, add)
        after = self._state(block)
        if before is not after:
            self._leave(before, block)
            self._enter(after, block)

    def _drop_holder(self, block: int, holder: Holder) -> None:
        held = self._blocks_of.get(holder, {})
        assert block in held, f"{holder} lets go of block {block} without holding it"
        del held[block]
        if not held:
            del self._blocks_of[holder]
        self._num_holders[holder.kind][block] -= 1

    def _add_holder(self, block: int, holder: Holder) -> None:
        held = self._blocks_of.setdefault(holder, {})
        assert block not in held, f"{holder} takes block {block} twice"
        held[block] = None
        self._num_holders[holder.kind][block] += 1

    def _leave(self, state: BlockState, block: int) -> None:
        if state in self._num_by_state:
            self._num_by_state[state] -= 1
        elif state is BlockState.CACHED:
            self._cached.remove(block)
        # A free block left its list when `_take` chose it.

    def _enter(self, state: BlockState, block: int) -> None:
        if state in self._num_by_state:
            self._num_by_state[state] += 1
        elif state is BlockState.CACHED:
            self._cached.add(block)
        else:
            self._free.append(block)

    def _state(self, block: int) -> BlockState:
        for kind, state in _STATE_BY_STRENGTH:
            if self._num_holders[kind][block]:
                return state
        return BlockState.CACHED if block in self._index else BlockState.FREE

    def _check_holder_counts(self) -> None:
        actual: Counter[tuple[HolderKind, int]] = Counter()
        for holder, blocks in self._blocks_of.items():
            assert blocks, f"{holder} is kept but holds nothing"
            actual.update((holder.kind, block) for block in blocks)
        for kind, counts in self._num_holders.items():
            for block, number in enumerate(counts):
                found = actual[kind, block]
                assert number == found, f"block {block}: {number} {kind}s counted, {found} hold it"

    def _check_unheld(self) -> None:
        free = set(self._free)
        assert len(free) == len(self._free), "a block is free twice"
        for block in range(self.num_blocks):
            state = self._state(block)
            listed = (block in free, block in self._cached)
            expected = (state is BlockState.FREE, state is BlockState.CACHED)
            assert listed == expected, f"block {block} is {state} but listed as {listed}"
