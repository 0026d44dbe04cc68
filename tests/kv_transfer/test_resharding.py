"""However both sides divide the heads, every D rank ends with the bytes of its own."""

from __future__ import annotations

import functools

import torch
from fakes_kv_peers import random_storage
from hypothesis import given, settings
from hypothesis import strategies as st

from core.kv_partition import kv_heads_of_rank
from core.kv_spec import KVGroup, KVSpec
from kv_cache.storage import KVStorage
from kv_transfer.layout import plan_routes
from kv_transfer.link_plan import LinkPlan
from kv_transfer.staging import BlockFormat, StagingLimits

MOST_HEADS, MOST_RANKS = 9, 8
SOURCE, TARGET = [7, 0, 30], [1, 2, 63]
LIMITS = StagingLimits(max_message_bytes=1 << 20, max_inflight_messages=2)

Split = list[range]


@functools.cache
def whole_model(num_heads: int, dtype: str) -> KVStorage:
    group = KVGroup(num_layers=2, num_kv_heads=num_heads, head_dim=2)
    return random_storage(11, KVSpec((group,), block_size=2, dtype=dtype))


models = st.builds(whole_model, st.integers(1, MOST_HEADS), st.sampled_from(["float32", "int8"]))


@st.composite
def any_splits(draw: st.DrawFn, num_heads: int) -> Split:
    """Runs of heads for each of some ranks: of any lengths, or copies of any heads."""
    if num_heads == 1 or draw(st.booleans()):
        copies = draw(st.lists(st.integers(0, num_heads - 1), min_size=1, max_size=MOST_RANKS))
        missing = sorted(set(range(num_heads)) - set(copies))
        return [range(head, head + 1) for head in [*copies, *missing]]
    cuts = draw(st.sets(st.integers(1, num_heads - 1)))
    bounds = [0, *sorted(cuts), num_heads]
    return [range(a, b) for a, b in zip(bounds, bounds[1:], strict=False)]


def split_of_group(num_heads: int, num_ranks: int) -> Split:
    return [kv_heads_of_rank(num_heads, num_ranks, rank) for rank in range(num_ranks)]


@settings(deadline=None)
@given(models, st.data())
def test_every_rank_gets_the_bytes_of_its_heads(model: KVStorage, data: st.DataObject) -> None:
    splits = any_splits(model.num_kv_heads)
    check(model, data.draw(splits), data.draw(splits))


@settings(deadline=None)
@given(models, st.integers(1, MOST_RANKS), st.integers(1, MOST_RANKS))
def test_groups_of_any_sizes_divide_heads_such_that_it_works(
    model: KVStorage, prefill_ranks: int, decode_ranks: int
) -> None:
    heads = model.num_kv_heads
    check(model, split_of_group(heads, prefill_ranks), split_of_group(heads, decode_ranks))


def check(model: KVStorage, prefill: Split, decode: Split) -> None:
    """Sends some blocks along the routes, each rank with a pool of its own heads only."""
    plan = LinkPlan.of(plan_routes(prefill, decode), BlockFormat.of(model), LIMITS)
    wire: dict[int, torch.Tensor] = {}
    for rank, heads in enumerate(prefill):
        storage = share(model, heads)
        storage.unpack(SOURCE, pack_share(model, heads))
        for lane in plan.prefill_lanes(rank):
            wire[lane.index] = storage.pack(SOURCE, lane.heads)
    size_bytes = sum(message.nbytes for message in wire.values())
    assert size_bytes == len(SOURCE) * plan.bytes_per_block, "what is announced"
    for rank, heads in enumerate(decode):
        storage = share(model, heads)
        for lane in plan.decode_lanes(rank):
            storage.unpack(TARGET, wire.pop(lane.index), lane.heads)
        assert torch.equal(storage.pack(TARGET), pack_share(model, heads)), f"rank {rank}"
    assert not wire, "every data link has one end on each side"


def share(model: KVStorage, heads: range) -> KVStorage:
    return KVStorage(model.spec, model.num_blocks, num_kv_heads_local=len(heads))


def pack_share(model: KVStorage, heads: range) -> torch.Tensor:
    return model.pack(SOURCE, slice(heads.start, heads.stop))
