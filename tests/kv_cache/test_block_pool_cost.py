"""What an operation of the pool costs depends on the blocks it names, never on how many there are.

Work is counted in calls, Python's and C's, which are the same on every machine. Every container of
the pool is a dict or a deque, whose single operations don't grow.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial

import pytest

from kv_cache.block_pool import BlockPool, Holder, HolderKind

SIZES = (64, 1_000, 100_000)


def num_calls(work: Callable[[], object]) -> int:
    """Calls made by `work`, of any function."""
    count = 0

    def on_event(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    gc.disable()  # what others left may be finalised meanwhile, in calls of its own
    sys.setprofile(on_event)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


def holder(name: str, kind: HolderKind = HolderKind.SEQUENCE) -> Holder:
    return Holder(kind, name)


def half_full(num_blocks: int) -> BlockPool:
    """Half its blocks held, a quarter cached, the rest free."""
    pool = BlockPool(num_blocks, 16)
    pool.allocate(holder("old"), num_blocks // 2)
    cached = pool.allocate(holder("gone"), num_blocks // 4)
    for block in cached:
        pool.publish(block, block.to_bytes(16, "little"))
    pool.release(holder("gone"))
    return pool


def allocate_and_release(pool: BlockPool) -> None:
    pool.allocate(holder("a"), 8)
    pool.release(holder("a"))


def publish_match_share(pool: BlockPool) -> None:
    blocks = pool.allocate(holder("a"), 8)
    hashes = [bytes([i]) * 16 for i in range(8)]
    for block, block_hash in zip(blocks, hashes, strict=True):
        pool.publish(block, block_hash)
    pool.share(holder("b"), pool.match(hashes))
    pool.release(holder("a"))


def import_and_move(pool: BlockPool) -> None:
    pool.allocate(holder("a", HolderKind.IMPORT), 8)
    pool.move(holder("a", HolderKind.IMPORT), holder("a"))


@pytest.mark.parametrize(
    "operation",
    [
        allocate_and_release,
        publish_match_share,
        import_and_move,
        BlockPool.blocks_by_state,
        lambda pool: pool.num_available,
        lambda pool: pool.holds(holder("nobody")),
    ],
)
def test_an_operation_costs_the_same_in_a_pool_of_any_size(
    operation: Callable[[BlockPool], object],
) -> None:
    costs = [num_calls(partial(operation, half_full(size))) for size in SIZES]
    assert costs == [costs[0]] * len(SIZES)


def test_evicting_a_block_costs_the_same_however_many_are_cached() -> None:
    costs = []
    for size in SIZES:
        pool = half_full(size)
        pool.allocate(holder("rest"), size - size // 2 - size // 4)
        costs.append(num_calls(partial(pool.allocate, holder("a"), 4)))
    assert costs == [costs[0]] * len(SIZES)


def test_what_a_pin_costs_depends_on_its_blocks_alone() -> None:
    costs = []
    for size in SIZES:
        pool = half_full(size)
        some = [block.to_bytes(16, "little") for block in range(size // 2, size // 2 + 8)]
        pin = partial(pool.pin, some, owner="", ttl_s=1.0, now=0.0)
        costs.append((num_calls(pin), num_calls(partial(pool.expire_pins, 1.0))))
    assert costs == [costs[0]] * len(SIZES)
