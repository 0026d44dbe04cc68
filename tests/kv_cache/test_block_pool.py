"""The pool's rules, one by one; tests/kv_cache/test_block_pool_properties.py mixes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from kv_cache.block_pool import BlockPool, BlockState, Holder, HolderKind, OutOfBlocksError

A = Holder(HolderKind.SEQUENCE, "a")
B = Holder(HolderKind.SEQUENCE, "b")
LEASE = Holder(HolderKind.LEASE, "t1")
IMPORT = Holder(HolderKind.IMPORT, "t1")


def key(number: int) -> bytes:
    return number.to_bytes(16, "little")


def publish_all(pool: BlockPool, blocks: list[int], first_key: int = 0) -> list[bytes]:
    hashes = [key(first_key + i) for i in range(len(blocks))]
    for block, block_hash in zip(blocks, hashes, strict=True):
        pool.publish(block, block_hash)
    return hashes


def states(pool: BlockPool) -> dict[str, int]:
    pool.check_integrity()
    return {state: number for state, number in pool.blocks_by_state().items() if number}


def test_a_fresh_pool_is_free() -> None:
    pool = BlockPool(4, 16)
    assert states(pool) == {"free": 4}
    assert pool.num_available == 4


def test_allocation_is_all_or_nothing() -> None:
    pool = BlockPool(4, 16)
    pool.allocate(A, 3)
    with pytest.raises(OutOfBlocksError) as caught:
        pool.allocate(B, 2)
    assert (caught.value.num_needed, caught.value.num_available) == (2, 1)
    assert states(pool) == {"running": 3, "free": 1}
    assert pool.holders() == [(A, 3)]


def test_allocating_nothing_holds_nothing() -> None:
    pool = BlockPool(1, 16)
    assert pool.allocate(A, 0) == []
    assert pool.holders() == []


def test_the_strongest_holder_names_the_state() -> None:
    pool = BlockPool(4, 16)
    blocks = pool.allocate(A, 2)
    pool.share(LEASE, blocks)
    assert states(pool) == {"leased": 2, "free": 2}
    pool.release(A)
    assert states(pool) == {"leased": 2, "free": 2}
    pool.allocate(IMPORT, 1)
    assert states(pool) == {"importing": 1, "leased": 2, "free": 1}


def test_release_twice_is_release_once() -> None:
    pool = BlockPool(4, 16)
    blocks = pool.allocate(A, 2)
    pool.share(B, blocks)
    pool.release(A)
    pool.release(A)
    pool.release(A, blocks)
    assert states(pool) == {"running": 2, "free": 2}
    assert pool.holds(B) == tuple(blocks)


def test_blocks_the_holder_never_had_are_not_released() -> None:
    pool = BlockPool(4, 16)
    pool.allocate(A, 1)
    theirs = pool.allocate(B, 1)
    pool.release(A, theirs)
    assert pool.holds(B) == tuple(theirs)


def test_a_part_of_a_sequence_can_be_released() -> None:
    pool = BlockPool(4, 16)
    blocks = pool.allocate(A, 4)
    pool.release(A, blocks[:2])
    assert pool.holds(A) == tuple(blocks[2:])
    assert states(pool) == {"running": 2, "free": 2}


def test_published_blocks_stay_cached_and_are_found_again() -> None:
    pool = BlockPool(4, 16)
    blocks = pool.allocate(A, 3)
    hashes = publish_all(pool, blocks[:2])
    pool.release(A)
    assert states(pool) == {"cached": 2, "free": 2}
    assert pool.match([*hashes, key(99)]) == blocks[:2]
    pool.share(B, blocks[:2])
    assert states(pool) == {"running": 2, "free": 2}


def test_a_match_ends_at_the_first_unknown_block() -> None:
    pool = BlockPool(4, 16)
    blocks = pool.allocate(A, 3)
    hashes = publish_all(pool, blocks)
    assert pool.match([hashes[0], key(99), hashes[2]]) == [blocks[0]]


def test_the_tail_of_a_sequence_is_evicted_before_its_head() -> None:
    pool = BlockPool(4, 16)
    blocks = pool.allocate(A, 4)
    hashes = publish_all(pool, blocks)
    pool.release(A)
    assert pool.allocate(B, 1) == [blocks[3]]
    assert pool.allocate(B, 1) == [blocks[2]]
    assert pool.match(hashes) == blocks[:2]


def test_the_least_recently_released_sequence_is_evicted_first() -> None:
    pool = BlockPool(4, 16)
    old = pool.allocate(A, 2)
    publish_all(pool, old)
    young = pool.allocate(B, 2)
    publish_all(pool, young, first_key=10)
    pool.release(A)
    pool.release(B)
    pool.share(A, old)
    pool.release(A)
    assert set(pool.allocate(A, 2)) == set(young)


def test_free_blocks_are_taken_before_cached_ones() -> None:
    pool = BlockPool(4, 16)
    blocks = pool.allocate(A, 2)
    hashes = publish_all(pool, blocks)
    pool.release(A)
    pool.allocate(B, 2)
    assert pool.match(hashes) == blocks
    assert pool.num_available == 2


def test_an_evicted_block_is_no_longer_found() -> None:
    pool = BlockPool(1, 16)
    hashes = publish_all(pool, pool.allocate(A, 1))
    pool.release(A)
    pool.allocate(B, 1)
    assert pool.match(hashes) == []
    pool.release(B)
    assert states(pool) == {"free": 1}


def test_the_first_publisher_of_a_content_wins() -> None:
    pool = BlockPool(2, 16)
    first = pool.allocate(A, 1)
    second = pool.allocate(B, 1)
    assert pool.publish(first[0], key(1))
    assert pool.publish(first[0], key(1))
    assert not pool.publish(second[0], key(1))
    pool.release(B)
    assert states(pool) == {"running": 1, "free": 1}
    assert pool.match([key(1)]) == first


def test_without_prefix_caching_nothing_stays() -> None:
    pool = BlockPool(2, 16, enable_prefix_caching=False)
    hashes = publish_all(pool, pool.allocate(A, 2))
    assert pool.match(hashes) == []
    pool.release(A)
    assert states(pool) == {"free": 2}


def test_an_import_becomes_a_sequence_behind_what_that_holds_already() -> None:
    pool = BlockPool(6, 16)
    prefix = pool.allocate(A, 2)
    arrived = pool.allocate(IMPORT, 3)
    pool.move(IMPORT, A)
    assert pool.holds(A) == (*prefix, *arrived)
    assert pool.holds(IMPORT) == ()
    assert states(pool) == {"running": 5, "free": 1}


def test_a_lease_takes_over_from_its_sequence() -> None:
    pool = BlockPool(3, 16)
    blocks = pool.allocate(A, 3)
    pool.share(LEASE, blocks[:1])
    pool.move(A, LEASE)
    assert set(pool.holds(LEASE)) == set(blocks)
    assert [pool.num_holders(block) for block in blocks] == [1, 1, 1]
    assert states(pool) == {"leased": 3}


def test_an_aborted_import_gives_its_blocks_back() -> None:
    pool = BlockPool(3, 16)
    blocks = pool.allocate(IMPORT, 3)
    assert all(pool.is_held_by(IMPORT, block) for block in blocks)
    pool.release(IMPORT)
    assert not any(pool.is_held_by(IMPORT, block) for block in blocks)
    assert states(pool) == {"free": 3}


def test_what_has_not_arrived_cannot_be_read() -> None:
    pool = BlockPool(2, 16)
    blocks = pool.allocate(IMPORT, 2)
    with pytest.raises(AssertionError, match="still being imported"):
        pool.share(A, blocks)
    pool.publish(blocks[0], key(0))
    pool.share(A, blocks[:1])
    assert states(pool) == {"importing": 2}


def test_free_blocks_cannot_be_shared() -> None:
    pool = BlockPool(2, 16)
    with pytest.raises(AssertionError, match="is free"):
        pool.share(A, [0])
    assert states(pool) == {"free": 2}


def test_a_holder_takes_a_block_once() -> None:
    pool = BlockPool(2, 16)
    blocks = pool.allocate(A, 1)
    with pytest.raises(AssertionError, match="twice"):
        pool.share(A, blocks)


def test_known_content_cannot_be_imported_over() -> None:
    pool = BlockPool(2, 16)
    pool.allocate(A, 1)
    with pytest.raises(AssertionError, match="can't become an import"):
        pool.move(A, IMPORT)


def test_only_held_blocks_are_published() -> None:
    pool = BlockPool(2, 16)
    with pytest.raises(AssertionError, match="nobody holds it"):
        pool.publish(0, key(0))


def test_a_block_has_one_content() -> None:
    pool = BlockPool(2, 16)
    (block,) = pool.allocate(A, 1)
    pool.publish(block, key(0))
    with pytest.raises(AssertionError, match="another hash"):
        pool.publish(block, key(1))


def test_growing_sequences_exhaust_the_pool_and_preemption_frees_it() -> None:
    pool = BlockPool(8, 16)
    pool.allocate(A, 4)
    pool.allocate(B, 4)
    with pytest.raises(OutOfBlocksError):
        pool.allocate(A, 1)
    pool.release(B)
    pool.allocate(A, 4)
    assert states(pool) == {"running": 8}


def damage_the_free_list(pool: BlockPool) -> None:
    pool._free.popleft()


def damage_a_holder_count(pool: BlockPool) -> None:
    pool._num_holders[HolderKind.SEQUENCE][0] += 1


def damage_the_state_counts(pool: BlockPool) -> None:
    pool._num_by_state[BlockState.LEASED] += 1


def damage_the_eviction_order(pool: BlockPool) -> None:
    pool._cached.evict()


def damage_the_index(pool: BlockPool) -> None:
    pool._index._block_of.clear()


def damage_a_holder(pool: BlockPool) -> None:
    pool._blocks_of[B] = {3: None}


@pytest.mark.parametrize(
    "damage",
    [
        damage_the_free_list,
        damage_a_holder_count,
        damage_the_state_counts,
        damage_the_eviction_order,
        damage_the_index,
        damage_a_holder,
    ],
)
def test_the_integrity_check_notices_damage(damage: Callable[[BlockPool], None]) -> None:
    pool = BlockPool(4, 16)
    blocks = pool.allocate(A, 2)
    pool.publish(blocks[1], key(1))
    pool.release(A, blocks[1:])
    pool.check_integrity()
    damage(pool)
    with pytest.raises(AssertionError):
        pool.check_integrity()


def test_first_uses_are_told_in_order_and_once() -> None:
    told: list[int] = []
    pool = BlockPool(4, 16, on_first_use=told.append)
    pool.allocate(A, 2)
    pool.release(A)
    pool.allocate(B, 4)
    assert told == [0, 1, 2, 3]
    pool.release(B)
    pool.allocate(A, 4)
    assert told == [0, 1, 2, 3]
