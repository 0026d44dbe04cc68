from __future__ import annotations

import mmap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from fakes_kv_peers import HEADS, SPEC, random_storage

from kv_cache.storage import KVStorage
from kv_transfer.layout import plan_routes
from kv_transfer.link import DataLink
from kv_transfer.memory_link import MemoryLinkMaker
from kv_transfer.staging import BlockFormat, Lane, Staging, StagingLimits, StagingSize, assemble

SIZE = StagingSize(num_slots=2, num_blocks=2)


def _staging(block_format: BlockFormat, num_heads: int) -> Staging:
    return Staging(block_format, SIZE, num_heads=num_heads, backend="gloo")


def _unused_link() -> DataLink:
    """An end of a link that carries nothing here."""
    links = MemoryLinkMaker()
    with ThreadPoolExecutor(1) as threads:
        accepting = threads.submit(links.accept, "name", 60.0)
        links.dial(links.host(), "name", 60.0)
        return accepting.result(60.0)


def test_a_block_takes_as_many_bytes_on_the_wire_as_the_spec_says() -> None:
    assert BlockFormat.of(KVStorage(SPEC, 1)).bytes_per_block == SPEC.bytes_per_block


def test_slots_are_reused_after_as_many_messages_as_may_be_in_flight() -> None:
    staging = _staging(BlockFormat.of(KVStorage(SPEC, 1)), 2)
    first, second, third = (staging.slot(seq, 2) for seq in (1, 2, 3))
    assert first.data_ptr() == third.data_ptr() != second.data_ptr()
    assert staging.slot(1, 1).is_contiguous()


def test_a_link_of_small_messages_takes_little_memory() -> None:
    """Whatever its largest ones may be: a worker has many links."""
    size = StagingSize(num_slots=4, num_blocks=2**23 // SPEC.bytes_per_block)
    staging = Staging(BlockFormat.of(KVStorage(SPEC, 1)), size, num_heads=2, backend="gloo")
    before = _memory_bytes()
    for seq in range(4):
        staging.slot(seq, 1).fill_(1)
    assert _memory_bytes() - before < 2**20


def _memory_bytes() -> int:
    """What this process has in memory."""
    resident = Path("/proc/self/statm").read_text().split()[1]
    return int(resident) * mmap.PAGESIZE


def test_heads_from_several_prefill_ranks_come_together_in_one_decode_rank() -> None:
    """P TP 2, D TP 1: two lanes carry halves of each block; D sees whole blocks."""
    source = random_storage(3)
    block_format = BlockFormat.of(source)
    blocks = [5, 0]
    lanes = []
    for index, route in enumerate(plan_routes([[0], [1]], HEADS)):
        rank_heads = source.pack(blocks, slice(route.prefill_rank, route.prefill_rank + 1))
        staging = _staging(block_format, route.num_heads)
        staging.slot(7, 2).copy_(rank_heads)
        lanes.append(Lane(index, _unused_link(), staging, route.decode_heads))
    whole = assemble(lanes, _staging(block_format, 2), 7, 2)
    assert torch.equal(whole, source.pack(blocks))


def test_the_only_lane_is_received_in_place() -> None:
    staging = _staging(BlockFormat.of(KVStorage(SPEC, 1)), 2)
    lane = Lane(0, _unused_link(), staging, None)
    assert assemble([lane], None, 3, 2).data_ptr() == staging.slot(3, 2).data_ptr()


def test_the_smaller_limits_of_both_sides_hold() -> None:
    ours, theirs = StagingLimits(10, 4), StagingLimits(20, 2)
    assert ours.smaller(theirs) == theirs.smaller(ours) == StagingLimits(10, 2)
