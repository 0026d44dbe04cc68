"""Memory is there before its blocks are used, and only as much as will be."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest
import torch

from core.kv_spec import KVGroup, KVSpec
from kv_cache.block_pool import BlockPool, Holder, HolderKind
from kv_cache.first_touch import FirstTouch
from kv_cache.storage import KVStorage

# 64 KiB a block
SPEC = KVSpec((KVGroup(num_layers=4, num_kv_heads=4, head_dim=64),), 16, "bfloat16")
AHEAD_BLOCKS = 128
NUM_BLOCKS = 1024
TIMEOUT_S = 30.0
A = Holder(HolderKind.SEQUENCE, "a")


@pytest.fixture
def storage() -> KVStorage:
    return KVStorage(SPEC, NUM_BLOCKS)


def ahead_of(storage: KVStorage) -> FirstTouch:
    touch = FirstTouch(storage, ahead_bytes=AHEAD_BLOCKS * storage.bytes_per_block)
    touch.wait_until_ready(TIMEOUT_S)
    return touch


def resident_bytes(tensor: torch.Tensor) -> int:
    """From the kernel's own table: 8 bytes for each page, the top bit says that it is present."""
    first = tensor.data_ptr() // mmap.PAGESIZE
    last = (tensor.data_ptr() + tensor.nbytes - 1) // mmap.PAGESIZE
    with Path("/proc/self/pagemap").open("rb") as table:
        table.seek(first * 8)
        entries = table.read((last - first + 1) * 8)
    return mmap.PAGESIZE * sum(entries[7::8][i] >> 7 for i in range(last - first + 1))


def blocks(storage: KVStorage, first: int, end: int) -> torch.Tensor:
    pieces = storage.layer(0).k
    begin = pieces.storage_offset() + first * storage.bytes_per_block // pieces.element_size()
    size = (end - first) * storage.bytes_per_block // pieces.element_size()
    return torch.as_strided(pieces, (size,), (1,), begin)


def test_some_blocks_are_ready_from_the_start(storage: KVStorage) -> None:
    assert ahead_of(storage).wait_until_ready(TIMEOUT_S) == AHEAD_BLOCKS


def test_blocks_become_ready_as_others_are_used(storage: KVStorage) -> None:
    touch = ahead_of(storage)
    pool = BlockPool(NUM_BLOCKS, 16, on_first_use=touch.taken)
    pool.allocate(A, 300)
    assert touch.wait_until_ready(TIMEOUT_S) == 300 + AHEAD_BLOCKS


def test_a_few_blocks_are_not_worth_a_start(storage: KVStorage) -> None:
    touch = ahead_of(storage)
    touch.taken(AHEAD_BLOCKS // 2 - 1)
    assert touch.wait_until_ready(TIMEOUT_S) == AHEAD_BLOCKS


def test_it_ends_with_the_pool(storage: KVStorage) -> None:
    touch = ahead_of(storage)
    touch.taken(NUM_BLOCKS - 1)
    assert touch.wait_until_ready(TIMEOUT_S) == NUM_BLOCKS


def test_touching_changes_nothing(storage: KVStorage) -> None:
    storage.layer(0).k[3] = 7.0
    before = storage.pack(range(8))
    storage.touch(0, 8)
    assert torch.equal(storage.pack(range(8)), before)


@pytest.mark.skipif(sys.platform != "linux", reason="the system can't be asked here")
def test_touched_blocks_have_memory_and_others_take_none(storage: KVStorage) -> None:
    ahead_of(storage)
    ready = blocks(storage, 0, AHEAD_BLOCKS)
    # A huge page may reach beyond the last block
    rest = blocks(storage, AHEAD_BLOCKS + 64, NUM_BLOCKS)
    assert resident_bytes(ready) >= ready.nbytes
    assert resident_bytes(rest) == 0
