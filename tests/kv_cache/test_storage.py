from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from tandem_kernels import LayerCache
from torch import Tensor

from core.errors import ConfigError
from core.kv_spec import KVGroup, KVSpec
from kv_cache.storage import KVStorage

GROUPS = (KVGroup(num_layers=3, num_kv_heads=4, head_dim=5),)
SPEC = KVSpec(GROUPS, block_size=8, dtype="float32")
DTYPES = ["float32", "bfloat16", "float16", "int8", "fp8"]
ROW_BYTES = {"float32": 20, "bfloat16": 10, "float16": 10, "int8": 7, "fp8": 7}
ALL = range(6)


@pytest.fixture(params=DTYPES)
def spec(request: pytest.FixtureRequest) -> KVSpec:
    return KVSpec(GROUPS, 8, request.param)


def random_storage(spec: KVSpec = SPEC, *, num_heads: int = 4) -> KVStorage:
    """Six blocks of random bytes."""
    torch.manual_seed(0)
    storage = KVStorage(spec, 6, num_kv_heads_local=num_heads)
    storage.unpack(ALL, torch.randint(256, storage.pack(ALL).shape, dtype=torch.uint8))
    return storage


def parts_of(cache: LayerCache) -> Iterator[Tensor]:
    """Keys and values, then their scales if there are any."""
    for part in (cache.k, cache.v, cache.k_scales, cache.v_scales):
        if part is not None:
            yield part


def as_bytes(part: Tensor) -> Tensor:
    return part.contiguous().view(torch.uint8)


def test_layers_are_views_of_the_storage(spec: KVSpec) -> None:
    storage = KVStorage(spec, 6)
    cache = storage.layer(1)
    assert cache.k.shape == cache.v.shape == (6, 4, 8, 5)
    ones = 0
    for part in parts_of(cache):
        part[2, 3] = 1
        ones += part[2, 3].numel()
    packed = storage.pack(ALL)
    assert torch.count_nonzero(packed) == torch.count_nonzero(packed[2, 1, :, 3]) >= ones
    assert all(torch.equal(p[2, 3].float(), torch.ones(p[2, 3].shape)) for p in parts_of(cache))


def test_slots_start_as_zeros_so_that_masked_ones_weigh_nothing(spec: KVSpec) -> None:
    storage = KVStorage(spec, 6)
    assert torch.count_nonzero(storage.pack(ALL)) == 0


def test_a_block_has_the_bytes_that_its_spec_says(spec: KVSpec) -> None:
    storage = KVStorage(spec, 6)
    assert storage.piece_bytes == 8 * ROW_BYTES[spec.dtype]
    assert storage.bytes_per_block == spec.bytes_per_block == 3 * 2 * 4 * storage.piece_bytes
    assert storage.pack([4, 1]).nbytes == 2 * storage.bytes_per_block


def test_the_wire_layout_is_block_layer_kv_head_then_values_and_scales(spec: KVSpec) -> None:
    storage = random_storage(spec)
    packed = storage.pack([4, 1])
    assert packed.is_contiguous()
    assert packed.shape == (2, 3, 2, 4, storage.piece_bytes)
    cache = storage.layer(2)
    keys, values = list(parts_of(cache))[0::2], list(parts_of(cache))[1::2]
    key_bytes = torch.cat([as_bytes(part[4, 3]).view(-1) for part in keys])
    value_bytes = torch.cat([as_bytes(part[1, 0]).view(-1) for part in values])
    assert torch.equal(packed[0, 2, 0, 3], key_bytes)
    assert torch.equal(packed[1, 2, 1, 0], value_bytes)


def test_what_is_packed_unpacks_to_the_same_bits(spec: KVSpec) -> None:
    source, target = random_storage(spec), KVStorage(spec, 9)
    target.unpack([8, 0, 3], source.pack([0, 5, 2]))
    assert torch.equal(target.pack([8, 0, 3]), source.pack([0, 5, 2]))
    assert torch.count_nonzero(target.pack([1, 2, 4, 5, 6, 7])) == 0
    for ours, theirs in zip(parts_of(target.layer(1)), parts_of(source.layer(1)), strict=True):
        assert torch.equal(as_bytes(ours[[8, 0, 3]]), as_bytes(theirs[[0, 5, 2]]))


@pytest.mark.parametrize("blocks", [[], [3], [0, 1, 2, 3, 4, 5], [4, 5, 1, 0, 2, 3]], ids=str)
def test_places_hold_what_is_packed_and_neighbours_are_one(spec: KVSpec, blocks: list[int]) -> None:
    storage = random_storage(spec)
    places = storage.places(blocks)
    assert places is not None
    assert b"".join(places) == storage.pack(blocks).numpy().tobytes()
    num_jumps = sum(after != before + 1 for before, after in pairwise(blocks))
    assert len(places) == (1 + num_jumps if blocks else 0)


def test_head_slices_go_where_they_belong(spec: KVSpec) -> None:
    """Four heads on ranks of three and one, and together again: scales travel with their heads."""
    source = random_storage(spec)
    slices = (slice(0, 3), slice(3, 4))
    ranks = [KVStorage(spec, 6, num_kv_heads_local=n) for n in (3, 1)]
    for heads, storage in zip(slices, ranks, strict=True):
        storage.unpack([3, 1], source.pack([0, 5], heads))
        for ours, theirs in zip(parts_of(storage.layer(2)), parts_of(source.layer(2)), strict=True):
            assert torch.equal(as_bytes(ours[[3, 1]]), as_bytes(theirs[[0, 5]][:, heads]))
    joined = KVStorage(spec, 6)
    for heads, storage in zip(slices, ranks, strict=True):
        joined.unpack([0, 5], storage.pack([3, 1]), heads)
    assert torch.equal(joined.pack([0, 5]), source.pack([0, 5]))
    assert torch.count_nonzero(joined.pack([1, 2, 3, 4])) == 0


def test_packing_fills_the_staging_buffer_it_is_given() -> None:
    storage = random_storage()
    staging = torch.empty((4, 3, 2, 2, storage.piece_bytes), dtype=torch.uint8)
    packed = storage.pack([5, 2, 0], slice(1, 3), out=staging[:3])
    assert packed.data_ptr() == staging.data_ptr()
    assert torch.equal(staging[:3], storage.pack([5, 2, 0])[:, :, :, 1:3])


def test_packing_no_blocks_is_an_empty_message() -> None:
    storage = random_storage()
    before = storage.pack(ALL)
    assert storage.pack([]).shape == (0, *before.shape[1:])
    storage.unpack([], storage.pack([]))
    assert torch.equal(storage.pack(ALL), before)


def test_staging_of_another_shape_or_type_is_refused() -> None:
    storage = random_storage()
    with pytest.raises(AssertionError):
        storage.unpack([0], storage.pack([0, 1]))
    with pytest.raises(AssertionError):
        storage.unpack([0], storage.pack([0]).view(torch.int8))


def test_a_block_that_does_not_exist_is_refused() -> None:
    storage = random_storage()
    with pytest.raises(AssertionError):
        storage.pack([6])
    with pytest.raises(AssertionError):
        storage.unpack([-1], storage.pack([0]))


def test_copied_blocks_are_equal_and_their_own(spec: KVSpec) -> None:
    storage = random_storage(spec)
    before = storage.pack(ALL)
    storage.copy_blocks([(0, 3), (1, 4), (0, 5)])
    assert torch.equal(storage.pack([3, 4, 5]), before[[0, 1, 0]])
    assert torch.equal(storage.pack([0, 1, 2]), before[[0, 1, 2]])
    storage.unpack([3], torch.zeros_like(before[:1]))
    assert torch.equal(storage.pack([0, 5]), before[[0, 0]])
    storage.copy_blocks([])


def test_groups_of_one_shape_share_the_storage() -> None:
    spec = KVSpec((KVGroup(2, 4, 5, window=32), KVGroup(1, 4, 5)), 8, "float32")
    assert KVStorage(spec, 2).num_layers == 3


def test_groups_of_different_shapes_are_refused() -> None:
    spec = KVSpec((KVGroup(2, 4, 5), KVGroup(1, 2, 5)), 8, "float32")
    with pytest.raises(ConfigError, match="KV shapes"):
        KVStorage(spec, 2)
