"""How many tokens and sequences a given memory holds."""

from __future__ import annotations

from dataclasses import dataclass

from core.config import ModelConfig
from core.kv_spec import resolve_kv_dtype
from text.card import ModelCard
from text.weight_bytes import weight_bytes as model_weight_bytes


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What fits into `memory_bytes` once the weights are in."""

    memory_bytes: int
    weight_bytes: int
    kv_dtype: str
    kv_bytes_per_token: int
    num_blocks: int
    num_tokens: int
    """Tokens of KV over all sequences, in whole blocks."""
    num_full_sequences: int
    """Sequences of the longest allowed length."""

    @property
    def fits(self) -> bool:
        """Whether at least one sequence of the longest allowed length fits."""
        return self.num_full_sequences > 0


def plan_memory(
    card: ModelCard,
    model: ModelConfig,
    *,
    memory_bytes: int,
    block_size: int,
    dtype: str,
    kv_cache_dtype: str = "auto",
    tensor_parallel_size: int = 1,
) -> MemoryPlan:
    """Plans the memory of the fullest rank, activations apart, for weights as `model` wants them.

    `dtype` is that of arithmetic, `kv_cache_dtype` as in the settings; ConfigError if they clash.
    Under tensor parallelism a rank holds its share of weights and KV heads, of these at least one.
    """
    spec = card.kv_spec(block_size, resolve_kv_dtype(kv_cache_dtype, dtype))
    weight_bytes = -(-model_weight_bytes(card, model, dtype) // tensor_parallel_size)
    heads_per_rank = -(-card.num_kv_heads // tensor_parallel_size)
    kv_bytes_per_token = spec.bytes_per_token * heads_per_rank // card.num_kv_heads
    free_bytes = max(0, memory_bytes - weight_bytes)
    num_blocks = free_bytes // (kv_bytes_per_token * block_size)
    length = model.max_model_len or card.max_model_len
    if spec.window is not None:
        # Blocks outside the window are freed; it spans one block more where it starts mid-block.
        length = min(length, spec.window + block_size)
    return MemoryPlan(
        memory_bytes=memory_bytes,
        weight_bytes=weight_bytes,
        kv_dtype=spec.dtype,
        kv_bytes_per_token=kv_bytes_per_token,
        num_blocks=num_blocks,
        num_tokens=num_blocks * block_size,
        num_full_sequences=num_blocks // spec.num_blocks(length),
    )
