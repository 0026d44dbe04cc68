from __future__ import annotations

import pytest

from core.config import CacheConfig
from core.errors import CapacityError
from kv_cache.sizing import GIB, Demand, MemoryProfile, plan_blocks

MIB = 2**20
DEMAND = Demand(block_size=16, bytes_per_block=MIB, max_model_len=1024, max_num_seqs=128)
GPU = MemoryProfile("cuda", 80 * GIB, weights_bytes=14 * GIB, activation_bytes=2 * GIB)
CPU = MemoryProfile("cpu", 16 * GIB, weights_bytes=512 * MIB, activation_bytes=256 * MIB)


def test_an_explicit_number_of_blocks_is_taken_as_it_is() -> None:
    assert plan_blocks(CacheConfig(num_blocks=64), DEMAND, CPU) == 64
    assert plan_blocks(CacheConfig(num_blocks=50_000), DEMAND, CPU) == 50_000


def test_a_fixed_budget_ignores_the_machines_memory() -> None:
    assert plan_blocks(CacheConfig(kv_cache_memory_gib=0.5), DEMAND, CPU) == 512


def test_a_gpu_gives_what_weights_and_activations_leave() -> None:
    demand = Demand(16, bytes_per_block=64 * MIB, max_model_len=1024, max_num_seqs=128)
    assert plan_blocks(CacheConfig(gpu_memory_utilization=0.75), demand, GPU) == (60 - 16) * 16


def test_workers_of_a_machine_divide_its_memory() -> None:
    shared = MemoryProfile("cpu", 16 * GIB, 512 * MIB, 256 * MIB, num_sharers=2)
    cache = CacheConfig(cpu_memory_utilization=0.5)
    assert plan_blocks(cache, DEMAND, CPU) == 8 * 1024 - 768
    assert plan_blocks(cache, DEMAND, shared) == 4 * 1024 - 768


def test_no_more_blocks_than_the_largest_batch_can_fill() -> None:
    demand = Demand(16, MIB, max_model_len=1000, max_num_seqs=4)
    assert plan_blocks(CacheConfig(), demand, GPU) == 4 * 63


@pytest.mark.parametrize(
    "cache", [CacheConfig(num_blocks=64), CacheConfig(kv_cache_memory_gib=64 * MIB / GIB)]
)
def test_one_request_of_the_largest_length_just_fits(cache: CacheConfig) -> None:
    assert plan_blocks(cache, DEMAND, CPU) == 64


def test_too_few_explicit_blocks_are_refused_with_the_numbers() -> None:
    with pytest.raises(CapacityError) as caught:
        plan_blocks(CacheConfig(num_blocks=63), DEMAND, CPU)
    assert caught.value.message == (
        "one request of 1024 tokens needs 64 KV blocks (0.06 GiB), but 63 (0.06 GiB) are "
        "available: cache.num_blocks is 63. Raise it, or set model.max_model_len to at most 1008."
    )


def test_too_small_a_budget_is_refused_with_the_numbers() -> None:
    with pytest.raises(CapacityError, match="kv_cache_memory_gib is 0.01") as caught:
        plan_blocks(CacheConfig(kv_cache_memory_gib=0.01), DEMAND, CPU)
    assert "needs 64 KV blocks" in caught.value.message
    assert "but 10 (0.01 GiB) are available" in caught.value.message
    assert "at most 160" in caught.value.message


def test_a_model_that_leaves_no_room_is_refused_with_the_numbers() -> None:
    big = MemoryProfile("cuda", 16 * GIB, weights_bytes=15 * GIB, activation_bytes=GIB)
    with pytest.raises(CapacityError) as caught:
        plan_blocks(CacheConfig(), DEMAND, big)
    assert caught.value.message == (
        "one request of 1024 tokens needs 64 KV blocks (0.06 GiB), but 0 (0.00 GiB) are "
        "available: 16.00 GiB x cache.gpu_memory_utilization 0.9 - 15.00 GiB of weights"
        " - 1.00 GiB of activations. Raise cache.gpu_memory_utilization."
    )


def test_a_shared_machine_is_named_as_such() -> None:
    shared = MemoryProfile("cpu", GIB, 512 * MIB, 0, num_sharers=4)
    with pytest.raises(CapacityError, match="cpu_memory_utilization 0.25 / 4 ranks"):
        plan_blocks(CacheConfig(), DEMAND, shared)
