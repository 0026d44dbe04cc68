"""What one token's KV is made of, independent of where and how it is stored."""

from __future__ import annotations

from dataclasses import dataclass

from core.errors import ConfigError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

_QUANTIZED_BYTES = {"int8": 1, "fp8": 1}
"""fp8 is e4m3fn."""
_SCALE_BYTES = 2
"""Of the bfloat16 that multiplies one token's values of one head, where they are quantised."""


def resolve_kv_dtype(configured: str, compute_dtype: str) -> str:
    """`cache.kv_cache_dtype` as an element type: `auto` is the type that the model computes in.

    Raises ConfigError for a float type other than that one: kernels read those as they are.
    """
    if configured in ("auto", compute_dtype):
        return compute_dtype
    if configured not in _QUANTIZED_BYTES:
        raise ConfigError(
            f"cache.kv_cache_dtype is {configured}, but the model computes in {compute_dtype}; "
            f"choose auto, int8 or fp8, or set model.dtype to {configured}"
        )
    return configured


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers of one KV shape. `window` is the sliding window in tokens, None for full attention."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class KVSpec:
    """The logical KV of a model: groups of layers, a block size in tokens, and an element type.

    `dtype` is one of float32, bfloat16, float16, int8 and fp8.
    """

    groups: tuple[KVGroup, ...]
    block_size: int
    dtype: str

    @property
    def is_quantized(self) -> bool:
        """Each token and head has a scale of its own beside its values."""
        return self.dtype in _QUANTIZED_BYTES

    def bytes_per_row(self, head_dim: int) -> int:
        """One token's key or value of one head, with its scale."""
        if self.is_quantized:
            return head_dim * _QUANTIZED_BYTES[self.dtype] + _SCALE_BYTES
        return head_dim * DTYPE_BYTES[self.dtype]

    @property
    def bytes_per_token(self) -> int:
        """2 (K and V) x layers x KV heads x bytes of a row, summed over groups."""
        return sum(
            2 * g.num_layers * g.num_kv_heads * self.bytes_per_row(g.head_dim) for g in self.groups
        )

    @property
    def bytes_per_block(self) -> int:
        return self.bytes_per_token * self.block_size

    @property
    def window(self) -> int | None:
        """The largest window over all groups, or None if any group attends to everything."""
        windows = [g.window for g in self.groups]
        return None if None in windows else max(w for w in windows if w is not None)

    def num_blocks(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens occupy."""
        return -(-num_tokens // self.block_size)
