"""Random mixes of everything a worker does with the pool, against a model that forgets nothing."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kv_cache.block_pool import BlockPool, Holder, HolderKind, OutOfBlocksError

HOLDERS = [Holder(kind, str(number)) for kind in HolderKind for number in range(3)]
NUM_BLOCKS = 8
MAX_PINNED = 5
TTLS = (5.0, 60.0)


def key(number: int) -> bytes:
    return number.to_bytes(16, "little")


class PoolMachine(RuleBasedStateMachine):
    """The model: who holds what as lists, contents by hash, and the order of eviction."""

    @initialize(caching=st.booleans())
    def start(self, caching: bool) -> None:
        self.pool = BlockPool(
            NUM_BLOCKS, 16, enable_prefix_caching=caching, max_pinned_blocks=MAX_PINNED
        )
        self.caching = caching
        self.held: dict[Holder, list[int]] = {holder: [] for holder in HOLDERS}
        self.content: dict[int, int] = {}  # block -> number of its published hash
        self.victims: list[int] = []  # cached blocks without a pin, next to be evicted first
        self.kept: list[int] = []  # those with one, which come after them
        self.pins: dict[int, tuple[str, float]] = {}  # block -> for whom, until when
        self.num_dropped = 0
        self.now = 0.0

    def holders_of(self, block: int) -> list[Holder]:
        return [holder for holder, blocks in self.held.items() if block in blocks]

    def state_of(self, block: int) -> str:
        kinds = {holder.kind for holder in self.holders_of(block)}
        if HolderKind.IMPORT in kinds:
            return "importing"
        if HolderKind.LEASE in kinds:
            return "leased"
        if kinds:
            return "running"
        return "cached" if block in self.content else "free"

    def free_blocks(self) -> list[int]:
        return [block for block in range(NUM_BLOCKS) if self.state_of(block) == "free"]

    def readable(self, block: int) -> bool:
        state = self.state_of(block)
        return state != "free" and (state != "importing" or block in self.content)

    @rule(holder=st.sampled_from(HOLDERS), number=st.integers(0, 4))
    def allocate(self, holder: Holder, number: int) -> None:
        free = self.free_blocks()
        unheld = self.victims + self.kept
        if number > len(free) + len(unheld):
            with pytest.raises(OutOfBlocksError):
                self.pool.allocate(holder, number)
            return
        blocks = self.pool.allocate(holder, number)
        assert len(set(blocks)) == number
        num_evicted = max(number - len(free), 0)
        evicted = unheld[:num_evicted]
        assert blocks[number - num_evicted :] == evicted, "the oldest go, after all free ones"
        assert set(blocks[: number - num_evicted]) <= set(free)
        self.take_out(evicted)
        for block in evicted:
            del self.content[block]
            if block in self.pins:
                self.num_dropped += 1
                del self.pins[block]
        self.held[holder] += blocks

    @rule(holder=st.sampled_from(HOLDERS), data=st.data())
    def share(self, holder: Holder, data: st.DataObject) -> None:
        legal = [
            block
            for block in range(NUM_BLOCKS)
            if block not in self.held[holder]
            and (self.readable(block) or (holder.kind is HolderKind.IMPORT and self.taken(block)))
        ]
        blocks = data.draw(st.lists(st.sampled_from(legal), unique=True)) if legal else []
        self.pool.share(holder, blocks)
        self.held[holder] += blocks
        self.take_out(blocks)

    def take_out(self, blocks: list[int]) -> None:
        self.victims = [block for block in self.victims if block not in blocks]
        self.kept = [block for block in self.kept if block not in blocks]

    def taken(self, block: int) -> bool:
        return bool(self.holders_of(block))

    @rule(holder=st.sampled_from(HOLDERS), data=st.data())
    def sharing_what_cannot_be_read_is_refused(self, holder: Holder, data: st.DataObject) -> None:
        illegal = [
            block
            for block in range(NUM_BLOCKS)
            if self.state_of(block) == "free"
            or (holder.kind is not HolderKind.IMPORT and not self.readable(block))
        ]
        if illegal:
            with pytest.raises(AssertionError):
                self.pool.share(holder, [data.draw(st.sampled_from(illegal))])

    @rule(holder=st.sampled_from(HOLDERS))
    def release_everything(self, holder: Holder) -> None:
        self.pool.release(holder)
        self.let_go(holder, list(self.held[holder]))

    @rule(holder=st.sampled_from(HOLDERS), blocks=st.lists(st.integers(0, NUM_BLOCKS - 1)))
    def release_some(self, holder: Holder, blocks: list[int]) -> None:
        self.pool.release(holder, blocks)
        unique = list(dict.fromkeys(blocks))
        self.let_go(holder, [block for block in unique if block in self.held[holder]])

    def let_go(self, holder: Holder, blocks: list[int]) -> None:
        for block in reversed(blocks):
            self.held[holder].remove(block)
            if self.state_of(block) == "cached":
                (self.kept if block in self.pins else self.victims).append(block)

    @rule(
        source=st.sampled_from(HOLDERS),
        heir=st.sampled_from([h for h in HOLDERS if h.kind is not HolderKind.IMPORT]),
    )
    def move(self, source: Holder, heir: Holder) -> None:
        if source == heir:
            return
        self.pool.move(source, heir)
        blocks, self.held[source] = self.held[source], []
        self.held[heir] += [block for block in blocks if block not in self.held[heir]]

    @precondition(lambda self: any(self.held.values()))
    @rule(data=st.data(), number=st.integers(0, 6))
    def publish(self, data: st.DataObject, number: int) -> None:
        held = sorted({block for blocks in self.held.values() for block in blocks})
        block = data.draw(st.sampled_from(held))
        if not self.caching:
            assert not self.pool.publish(block, key(number))
        elif block in self.content:
            assert self.pool.publish(block, key(self.content[block]))
        elif number in self.content.values():
            assert not self.pool.publish(block, key(number))
        else:
            assert self.pool.publish(block, key(number))
            self.content[block] = number

    @rule(
        numbers=st.lists(st.integers(0, 6), max_size=4, unique=True),
        owner=st.sampled_from("ab"),
        ttl_s=st.sampled_from(TTLS),
        max_owned=st.none() | st.integers(0, 4),
    )
    def pin(self, numbers: list[int], owner: str, ttl_s: float, max_owned: int | None) -> None:
        block_of = {number: block for block, number in self.content.items()}
        gained_s = self.pool.pin(
            [*map(key, numbers)], owner=owner, ttl_s=ttl_s, now=self.now, max_owned=max_owned
        )
        if any(number not in block_of for number in numbers):
            assert gained_s is None
            return
        blocks, until = [block_of[number] for number in numbers], self.now + ttl_s
        num_new = sum(block not in self.pins for block in blocks)
        num_gained = sum(self.pins.get(block, ("", 0))[0] != owner for block in blocks)
        too_many = num_new and len(self.pins) + num_new > MAX_PINNED
        if max_owned is not None and num_gained:
            too_many = too_many or self.owned()[owner] + num_gained > max_owned
        if too_many:
            assert gained_s is None
            return
        longer = [b for b in blocks if self.pins.get(b, ("", self.now))[1] < until]
        assert gained_s == sum(until - self.pins.get(b, ("", self.now))[1] for b in longer)
        for block in reversed(longer):
            self.pins[block] = (owner, until)
            if block in self.victims:
                self.victims.remove(block)
                self.kept.append(block)

    @rule(seconds=st.sampled_from([1.0, 5.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.pool.expire_pins(self.now)
        self.expire()

    def expire(self) -> None:
        """Whose time is over is cached as others are; in which order the pool says."""
        self.pins = {b: pin for b, pin in self.pins.items() if pin[1] > self.now}
        over = [block for block in self.kept if block not in self.pins]
        self.take_out(over)
        order = list(self.pool._cached._unpinned)
        assert order[: len(self.victims)] == self.victims
        assert sorted(order[len(self.victims) :]) == sorted(over)
        self.victims = order

    def owned(self) -> Counter[str]:
        return Counter(owner for owner, _ in self.pins.values())

    @rule(numbers=st.lists(st.integers(0, 6), max_size=4))
    def match(self, numbers: list[int]) -> None:
        block_of = {number: block for block, number in self.content.items()}
        expected = []
        for number in numbers:
            if number not in block_of:
                break
            expected.append(block_of[number])
        assert self.pool.match(map(key, numbers)) == expected

    @invariant()
    def the_pool_is_whole(self) -> None:
        self.pool.check_integrity()
        states = [self.state_of(block) for block in range(NUM_BLOCKS)]
        expected = {s: states.count(s) for s in self.pool.blocks_by_state()}
        assert self.pool.blocks_by_state() == expected
        assert sum(expected.values()) == NUM_BLOCKS
        assert self.pool.num_available == expected["free"] + expected["cached"]

    @invariant()
    def the_pool_agrees_on_what_is_pinned(self) -> None:
        assert self.pool.pinned_by_owner() == self.owned()
        assert self.pool.num_pins_dropped == self.num_dropped
        assert self.pool.next_pin_expiry() == min((u for _, u in self.pins.values()), default=None)

    @invariant()
    def the_pool_agrees_on_who_holds_what(self) -> None:
        for holder, blocks in self.held.items():
            assert self.pool.holds(holder) == tuple(blocks)
            assert all(self.pool.is_held_by(holder, block) for block in blocks)
        counts = {holder: len(blocks) for holder, blocks in self.held.items() if blocks}
        assert dict(self.pool.holders()) == counts
        for block in range(NUM_BLOCKS):
            assert self.pool.num_holders(block) == len(self.holders_of(block))

    def teardown(self) -> None:
        for holder in HOLDERS:
            self.pool.release(holder)
        assert self.pool.num_available == NUM_BLOCKS, "something leaked"


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase
