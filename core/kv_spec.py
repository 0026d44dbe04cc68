"""What one token's KV is made of, independent of where and how it is stored."""

from __future__ import annotations

from dataclasses import dataclass

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers of one KV shape. `window` is the sliding window in tokens, None for full attention."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    window: int | None = None


@dataclass(frozen=True, slots=True)
class KVSpec:
    """The logical KV of a model: groups of layers, a block size in tokens, and an element type."""

    groups: tuple[KVGroup, ...]
    block_size: int
    dtype: str

    @property
    def bytes_per_token(self) -> int:
        """2 (K and V) x layers x KV heads x head size x bytes, summed over groups."""
        return sum(
            2 * g.num_layers * g.num_kv_heads * g.head_dim * DTYPE_BYTES[self.dtype]
            for g in self.groups
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
