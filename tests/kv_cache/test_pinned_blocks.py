"""Pinned blocks: evicted last and not before their time, counted, and never in anybody's way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kv_cache.block_pool import BlockPool, Holder, HolderKind

HOLDER = Holder(HolderKind.SEQUENCE, "a")
TTL_S = 300.0


def key(number: int) -> bytes:
    return number.to_bytes(16, "little")


def pool_of(num_blocks: int, max_pinned: int | None = None) -> BlockPool:
    return BlockPool(num_blocks, 16, max_pinned_blocks=max_pinned)


def cache(pool: BlockPool, *numbers: int) -> list[bytes]:
    """Blocks of these contents, cached; their hashes."""
    hashes = [key(number) for number in numbers]
    for block, block_hash in zip(pool.allocate(HOLDER, len(hashes)), hashes, strict=True):
        pool.publish(block, block_hash)
    pool.release(HOLDER)
    return hashes


def pin(
    pool: BlockPool,
    hashes: list[bytes],
    *,
    owner: str = "",
    ttl_s: float = TTL_S,
    now: float = 0.0,
    max_owned: int | None = None,
) -> float | None:
    return pool.pin(hashes, owner=owner, ttl_s=ttl_s, now=now, max_owned=max_owned)


def known(pool: BlockPool, *numbers: int) -> list[int]:
    """Which of these contents are cached."""
    return [number for number in numbers if pool.match([key(number)])]


def test_a_pinned_prefix_outlives_what_was_used_after_it() -> None:
    pool = pool_of(6)
    assert pin(pool, cache(pool, 0, 1)) == 2 * TTL_S
    cache(pool, 2, 3, 4, 5)
    cache(pool, 6, 7, 8, 9)
    assert known(pool, *range(10)) == [0, 1, 6, 7, 8, 9]
    pool.check_integrity()


def test_a_pin_ends_with_its_time_and_the_tail_goes_before_the_head() -> None:
    pool = pool_of(4)
    pin(pool, cache(pool, 0, 1))
    assert pool.next_pin_expiry() == TTL_S
    cache(pool, 2, 3)
    pool.expire_pins(TTL_S - 1)
    assert pool.pinned_by_owner() == {"": 2}
    pool.expire_pins(TTL_S)
    assert pool.pinned_by_owner() == {} and pool.next_pin_expiry() is None
    assert known(pool, 0, 1, 2, 3) == [0, 1, 2, 3], "it is cached as others are"
    cache(pool, 4, 5, 6)
    assert known(pool, 0, 1, 2, 3) == [0]
    assert pool.num_pins_dropped == 0


def test_pins_whose_time_is_over_make_room_for_others() -> None:
    pool = pool_of(4, max_pinned=2)
    first, second = cache(pool, 0, 1), cache(pool, 2, 3)
    pin(pool, first)
    assert pin(pool, second, now=TTL_S - 1) is None
    assert pin(pool, second, now=TTL_S) == 2 * TTL_S


def test_another_mark_starts_the_time_anew_and_never_shortens_it() -> None:
    pool = pool_of(4)
    hashes = cache(pool, 0, 1)
    pin(pool, hashes, ttl_s=3600.0)
    assert pin(pool, hashes, now=10.0) == 0.0
    assert pool.next_pin_expiry() == 3600.0
    assert pin(pool, hashes, now=3500.0) == 2 * 200.0
    assert pool.next_pin_expiry() == 3800.0
    assert pin(pool, hashes, ttl_s=3600.0, now=3600.0) == 2 * 3400.0
    pool.expire_pins(7199.0)
    assert pool.pinned_by_owner() == {"": 2}
    pool.check_integrity()


def test_a_longer_prefix_pays_for_what_it_adds() -> None:
    pool = pool_of(4)
    hashes = cache(pool, 0, 1, 2)
    pin(pool, hashes[:2])
    assert pin(pool, hashes) == TTL_S
    assert pool.pinned_by_owner() == {"": 3}


def test_more_than_the_pools_share_is_not_pinned_and_nothing_of_it_is() -> None:
    pool = pool_of(8, max_pinned=3)
    first, second = cache(pool, 0, 1), cache(pool, 2, 3)
    assert pin(pool, first) is not None
    assert pin(pool, second) is None
    assert pool.pinned_by_owner() == {"": 2}
    assert pin(pool, first, now=5.0) == 2 * 5.0, "what is pinned may stay so"
    assert pin(pool, second[:1], now=5.0) == TTL_S


def test_an_owner_pins_so_much_and_others_are_not_touched() -> None:
    pool = pool_of(8)
    first, second = cache(pool, 0, 1), cache(pool, 2, 3)
    assert pin(pool, first, owner="a", max_owned=3) is not None
    assert pin(pool, second, owner="a", max_owned=3) is None
    assert pin(pool, first, owner="a", now=1.0, max_owned=1) is not None, "nothing is added"
    assert pin(pool, second, owner="b", now=1.0, max_owned=3) is not None
    assert pool.pinned_by_owner() == {"a": 2, "b": 2}
    assert pin(pool, first, owner="b", now=2.0, max_owned=3) is None, "it would be b's"
    assert pin(pool, first, owner="b", now=2.0, max_owned=4) is not None
    assert pool.pinned_by_owner() == {"b": 4}


def test_what_is_not_published_is_not_pinned() -> None:
    pool = pool_of(4)
    hashes = cache(pool, 0, 1)
    assert pin(pool, [*hashes, key(2)]) is None
    assert pool.pinned_by_owner() == {}
    off = BlockPool(4, 16, enable_prefix_caching=False)
    assert pin(off, cache(off, 0)) is None


def test_pins_give_way_when_no_other_block_is_left() -> None:
    pool = pool_of(6)
    pin(pool, cache(pool, 0, 1))
    pin(pool, cache(pool, 2, 3))
    cache(pool, 4)
    assert pool.num_available == 6, "nobody has to wait for a pin"
    blocks = pool.allocate(HOLDER, 3)
    assert known(pool, 0, 1, 2, 3, 4) == [0, 2, 3], "the least recently used, its tail first"
    assert pool.num_pins_dropped == 1 and pool.pinned_by_owner() == {"": 3}
    assert len(set(blocks)) == 3
    pool.check_integrity()


def test_a_block_that_is_held_stays_pinned_and_is_cached_so_when_it_is_let_go() -> None:
    pool = pool_of(3)
    (block,) = pool.allocate(HOLDER, 1)
    pool.publish(block, key(0))
    pin(pool, [key(0)])
    assert pool.blocks_by_state()["running"] == 1 and pool.pinned_by_owner() == {"": 1}
    pool.release(HOLDER)
    assert pool.holders() == [] and pool.blocks_by_state()["cached"] == 1
    cache(pool, 1, 2)
    cache(pool, 3, 4)
    assert known(pool, *range(5)) == [0, 3, 4]
    pool.share(HOLDER, pool.match([key(0)]))
    pool.expire_pins(TTL_S)
    pool.release(HOLDER)
    cache(pool, 5, 6)
    cache(pool, 7)
    assert known(pool, 0) == []
    pool.check_integrity()


def forget_an_owner(pool: BlockPool) -> None:
    pool._cached._num_owned.clear()


def forget_a_queue(pool: BlockPool) -> None:
    pool._cached._queues.clear()


def forget_a_pin(pool: BlockPool) -> None:
    pool._cached._pins.clear()


def pin_too_much(pool: BlockPool) -> None:
    pool._cached.max_pinned = 0


@pytest.mark.parametrize("damage", [forget_an_owner, forget_a_queue, forget_a_pin, pin_too_much])
def test_the_integrity_check_notices_damage(damage: Callable[[BlockPool], None]) -> None:
    pool = pool_of(4)
    pin(pool, cache(pool, 0, 1))
    pool.check_integrity()
    damage(pool)
    with pytest.raises(AssertionError):
        pool.check_integrity()
