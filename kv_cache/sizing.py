"""How many KV blocks a worker's rank can have.

    explicit     cache.num_blocks
    fixed        cache.kv_cache_memory_gib
    utilisation  a share of the memory, less weights and the activations of the largest batch

The last two are cut to what `max_num_seqs` sequences of `max_model_len` tokens can use. Whatever
the source, one request of `max_model_len` tokens must fit: otherwise it could never finish.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from core.config import CacheConfig
from core.errors import CapacityError

GIB = 2**30


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """A rank's memory, measured by a profile run of the largest batch; sizes in bytes.

    `capacity_bytes` is on GPUs the device's total memory, on CPUs what the machine had available
    before its workers loaded anything. `num_sharers` ranks share it: on GPUs those on this device,
    on CPUs those on this machine.
    """

    device_type: Literal["cpu", "cuda"]
    capacity_bytes: int
    weights_bytes: int
    activation_bytes: int
    num_sharers: int = 1


@dataclass(frozen=True, slots=True)
class Demand:
    """What the blocks are for. `bytes_per_block` is this rank's share of a block."""

    block_size: int
    bytes_per_block: int
    max_model_len: int
    max_num_seqs: int

    @property
    def blocks_of_one(self) -> int:
        """Blocks of one request of the largest allowed length."""
        return -(-self.max_model_len // self.block_size)


def plan_blocks(cache: CacheConfig, demand: Demand, memory: MemoryProfile) -> int:
    """Blocks in the pool of this rank; a group takes the least of its ranks.

    Raises CapacityError, which names the numbers and what to change.
    """
    if cache.num_blocks is not None:
        _require(demand, cache.num_blocks, f"cache.num_blocks is {cache.num_blocks}", "it")
        return cache.num_blocks
    if cache.kv_cache_memory_gib is not None:
        budget_bytes = int(cache.kv_cache_memory_gib * GIB)
        origin = f"cache.kv_cache_memory_gib is {cache.kv_cache_memory_gib:g}"
        return _fit(demand, budget_bytes, origin, "it")
    setting, share = _utilization(cache, memory)
    budget_bytes = int(memory.capacity_bytes * share / memory.num_sharers)
    budget_bytes -= memory.weights_bytes + memory.activation_bytes
    return _fit(demand, budget_bytes, _explain(memory, setting, share), setting)


def _fit(demand: Demand, budget_bytes: int, origin: str, setting: str) -> int:
    num_blocks = max(budget_bytes, 0) // demand.bytes_per_block
    _require(demand, num_blocks, origin, setting)
    return min(num_blocks, demand.max_num_seqs * demand.blocks_of_one)


def _require(demand: Demand, num_blocks: int, origin: str, setting: str) -> None:
    if num_blocks >= demand.blocks_of_one:
        return
    needed_gib = demand.blocks_of_one * demand.bytes_per_block / GIB
    available_gib = num_blocks * demand.bytes_per_block / GIB
    num_tokens = num_blocks * demand.block_size
    remedy = f"Raise {setting}"
    if num_tokens:
        remedy += f", or set model.max_model_len to at most {num_tokens}"
    raise CapacityError(
        f"one request of {demand.max_model_len} tokens needs {demand.blocks_of_one} KV blocks "
        f"({needed_gib:.2f} GiB), but {num_blocks} ({available_gib:.2f} GiB) are available: "
        f"{origin}. {remedy}."
    )


def _utilization(cache: CacheConfig, memory: MemoryProfile) -> tuple[str, float]:
    """The setting that applies on this device, with its value."""
    if memory.device_type == "cuda":
        return "cache.gpu_memory_utilization", cache.gpu_memory_utilization
    return "cache.cpu_memory_utilization", cache.cpu_memory_utilization


def _explain(memory: MemoryProfile, setting: str, share: float) -> str:
    sharers = f" / {memory.num_sharers} ranks" if memory.num_sharers > 1 else ""
    return (
        f"{memory.capacity_bytes / GIB:.2f} GiB x {setting} {share:g}{sharers}"
        f" - {memory.weights_bytes / GIB:.2f} GiB of weights"
        f" - {memory.activation_bytes / GIB:.2f} GiB of activations"
    )
