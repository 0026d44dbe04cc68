from __future__ import annotations

import pytest
import torch

from core.errors import ConfigError
from core.kv_spec import KVGroup, KVSpec
from kv_cache.storage import KVStorage

SPEC = KVSpec((KVGroup(num_layers=3, num_kv_heads=4, head_dim=5),), block_size=8, dtype="float32")


def random_storage(spec: KVSpec = SPEC, num_blocks: int = 6) -> KVStorage:
    torch.manual_seed(0)
    storage = KVStorage(spec, num_blocks)
    storage.data.copy_(torch.randn(storage.data.shape))
    return storage


def test_layers_are_views_of_the_storage() -> None:
    storage = KVStorage(SPEC, 6)
    k, v = storage.layer(1).k, storage.layer(1).v
    k[2, 3] = 1.0
    v[4, 0] = 2.0
    assert k.shape == v.shape == (6, 4, 8, 5)
    assert torch.equal(storage.data[1, 0, 2, 3], torch.ones(8, 5))
    assert torch.equal(storage.data[1, 1, 4, 0], torch.full((8, 5), 2.0))
    assert storage.data.sum() == 8 * 5 * 3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_slots_start_finite_so_that_masked_ones_weigh_nothing(dtype: str) -> None:
    storage = KVStorage(KVSpec(SPEC.groups, 8, dtype), 6)
    assert storage.data.dtype == getattr(torch, dtype)
    assert torch.count_nonzero(storage.data) == 0


def test_the_wire_layout_is_block_layer_kv_head_token_dim() -> None:
    storage = random_storage()
    packed = storage.pack([4, 1])
    assert packed.is_contiguous()
    assert packed.shape == (2, 3, 2, 4, 8, 5)
    k, v = storage.layer(2).k, storage.layer(2).v
    assert torch.equal(packed[0, 2, 0, 3], k[4, 3])
    assert torch.equal(packed[1, 2, 1, 0], v[1, 0])
    assert packed.nbytes == 2 * storage.bytes_per_block == 2 * SPEC.bytes_per_block


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_packed_unpacks_to_the_same_bits(dtype: str) -> None:
    spec = KVSpec(SPEC.groups, 8, dtype)
    source, target = random_storage(spec), KVStorage(spec, 9)
    target.unpack([8, 0, 3], source.pack([0, 5, 2]))
    assert torch.equal(target.pack([8, 0, 3]), source.pack([0, 5, 2]))
    untouched = [1, 2, 4, 5, 6, 7]
    assert torch.count_nonzero(target.data[:, :, untouched]) == 0


def test_head_slices_go_where_they_belong() -> None:
    source = random_storage()
    ranks = [KVStorage(SPEC, 6, num_kv_heads_local=2) for _ in range(2)]
    for rank, storage in enumerate(ranks):
        storage.unpack([3, 1], source.pack([0, 5], slice(2 * rank, 2 * rank + 2)))
    joined = KVStorage(SPEC, 6)
    for rank, storage in enumerate(ranks):
        joined.unpack([0, 5], storage.pack([3, 1]), slice(2 * rank, 2 * rank + 2))
    assert torch.equal(joined.pack([0, 5]), source.pack([0, 5]))


def test_packing_fills_the_staging_buffer_it_is_given() -> None:
    storage = random_storage()
    staging = torch.empty(4, 3, 2, 2, 8, 5)
    packed = storage.pack([5, 2, 0], slice(1, 3), out=staging[:3])
    assert packed.data_ptr() == staging.data_ptr()
    assert torch.equal(staging[:3], storage.pack([5, 2, 0])[:, :, :, 1:3])


def test_packing_no_blocks_is_an_empty_message() -> None:
    storage = random_storage()
    assert storage.pack([]).shape == (0, 3, 2, 4, 8, 5)
    before = storage.data.clone()
    storage.unpack([], storage.pack([]))
    assert torch.equal(storage.data, before)


def test_staging_of_another_shape_or_type_is_refused() -> None:
    storage = random_storage()
    with pytest.raises(AssertionError):
        storage.unpack([0], storage.pack([0, 1]))
    with pytest.raises(AssertionError):
        storage.unpack([0], storage.pack([0]).bfloat16())


def test_copied_blocks_are_equal_and_their_own() -> None:
    storage = random_storage()
    before = storage.data.clone()
    storage.copy_blocks([(0, 3), (1, 4)])
    assert torch.equal(storage.data[:, :, [3, 4]], before[:, :, [0, 1]])
    storage.data[:, :, 3] = 0
    assert torch.equal(storage.data[:, :, [0, 1, 2, 5]], before[:, :, [0, 1, 2, 5]])
    storage.copy_blocks([])


def test_groups_of_one_shape_share_the_storage() -> None:
    spec = KVSpec((KVGroup(2, 4, 5, window=32), KVGroup(1, 4, 5)), 8, "float32")
    assert KVStorage(spec, 2).data.shape[0] == 3


def test_groups_of_different_shapes_are_refused() -> None:
    spec = KVSpec((KVGroup(2, 4, 5), KVGroup(1, 2, 5)), 8, "float32")
    with pytest.raises(ConfigError, match="KV shapes"):
        KVStorage(spec, 2)
