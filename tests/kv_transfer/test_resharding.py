"""However both sides divide the heads, every D rank ends with the bytes of its own."""

from __future__ import annotations

import torch
from fakes_kv_peers import random_storage
from hypothesis import given, settings
from hypothesis import strategies as st

from core.kv_spec import KVGroup, KVSpec
from kv_cache.storage import KVStorage
from kv_transfer.layout import plan_routes
from kv_transfer.link_plan import LinkPlan
from kv_transfer.staging import BlockFormat, StagingLimits

NUM_HEADS = 6
SPEC = KVSpec(
    (KVGroup(num_layers=2, num_kv_heads=NUM_HEADS, head_dim=2),), block_size=2, dtype="float32"
)
SOURCE, TARGET = [7, 0, 30], [1, 2, 63]

Split = list[range]


@st.composite
def splits(draw: st.DrawFn) -> Split:
    """Runs of heads for each of some ranks: of any lengths, or copies of any heads."""
    if draw(st.booleans()):
        copies = draw(st.lists(st.integers(0, NUM_HEADS - 1), min_size=1, max_size=8))
        missing = sorted(set(range(NUM_HEADS)) - set(copies))
        return [range(head, head + 1) for head in [*copies, *missing]]
    cuts = draw(st.sets(st.integers(1, NUM_HEADS - 1)))
    bounds = [0, *sorted(cuts), NUM_HEADS]
    return [range(a, b) for a, b in zip(bounds, bounds[1:], strict=False)]


MODEL = random_storage(11, SPEC)


def share(heads: range) -> KVStorage:
    return KVStorage(SPEC, MODEL.num_blocks, num_kv_heads_local=len(heads))


def pack_share(heads: range, blocks: list[int]) -> torch.Tensor:
    return MODEL.pack(blocks, slice(heads.start, heads.stop))


@settings(deadline=None)
@given(splits(), splits())
def test_every_rank_gets_the_bytes_of_its_heads(prefill: Split, decode: Split) -> None:
    limits = StagingLimits(max_message_bytes=1 << 20, max_inflight_messages=2)
    block_format = BlockFormat.of(MODEL)
    plan = LinkPlan.of(plan_routes(prefill, decode), block_format, limits)
    wire: dict[int, torch.Tensor] = {}
    for rank, heads in enumerate(prefill):
        storage = share(heads)
        storage.unpack(SOURCE, pack_share(heads, SOURCE))
        for lane in plan.prefill_lanes(rank):
            wire[lane.index] = storage.pack(SOURCE, lane.heads)
    size_bytes = sum(message.nbytes for message in wire.values())
    assert size_bytes == len(SOURCE) * plan.bytes_per_block, "what is announced"
    for rank, heads in enumerate(decode):
        storage = share(heads)
        for lane in plan.decode_lanes(rank):
            storage.unpack(TARGET, wire.pop(lane.index), lane.heads)
        assert torch.equal(storage.pack(TARGET), pack_share(heads, SOURCE)), f"rank {rank}"
    assert not wire, "every data link has one end on each side"
