"""What a backend computes for a decoder layer, and how a batch is described to it.

    tokens     | d0 | d1 | ... | p0 p0 p0 p0 | p1 p1 |      flattened, no padding
                 `num_decode` rows of 1       prefill chunks of any length
    query_starts 0    1    2 ...             each sequence's first row, and T at the end

A sequence's queries are the *last* tokens of its context, whose KV `write_kv` has already put into
the cache, so attention reads keys and values from the cache only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False, slots=True)
class AttentionMeta:
    """One batch of n sequences with T query tokens in all. One object serves all layers of a step.

    Integers are kept beside the tensors where a kernel would otherwise have to wait for the device.
    """

    query_starts: Tensor
    """int32 [n + 1]: sequence i's query rows are query_starts[i] .. query_starts[i + 1]."""
    context_lens: Tensor
    """int32 [n]: tokens with KV after this step, queries included."""
    block_tables: Tensor
    """int32 [n, max_blocks]: cache blocks in the order of their tokens. Entries wholly before the
    window or beyond the context may be 0 and are never read."""
    slot_mapping: Tensor
    """int64 [T]: block * block_size + offset, where each query token's KV goes. All different."""
    num_decode: int
    """The first so many sequences have exactly one query token."""
    max_context_len: int
    """Largest of `context_lens`."""


@dataclass(frozen=True, eq=False, slots=True)
class LayerCache:
    """One layer's paged KV: views of a storage in which blocks (and heads of a block) lie apart."""

    k: Tensor
    """[num_blocks, kv_heads, block_size, d]: a float type, or int8 or float8_e4m3fn with scales.
    The last two axes are contiguous."""
    v: Tensor
    k_scales: Tensor | None = None
    """bfloat16 [num_blocks, kv_heads, block_size], last axis contiguous: a token's key of a head is
    its values times its scale. None: values are the key itself."""
    v_scales: Tensor | None = None


@dataclass(frozen=True, eq=False, slots=True)
class QuantizedWeight:
    """A weight [out, in] of whole numbers: w[o, i] = values[o, i] * scales[o, g] + offsets[o, g],
    with g = i // group_size. What every quantised checkpoint is brought to before it is packed."""

    scheme: Literal["int8", "int4", "w8a8"]
    """int8, int4: activations stay as they are. w8a8: activations are rounded to int8 too, with a
    scale for each token; one group, no offsets."""
    values: Tensor
    """int8 [out, in]; of int4, uint8 [out, in] with one number of 0..15 a byte."""
    scales: Tensor
    """float32 [out, ceil(in / group_size)]."""
    offsets: Tensor | None
    """float32, shaped like scales; None: all 0."""
    group_size: int
    """Columns that share a scale: 32, 64, 128, or all of them (per channel)."""


class PackedLinear(Protocol):
    """y = x W^T + b with weights in whatever layout is fastest. [T, in] -> [T, out]."""

    def __call__(self, x: Tensor, /) -> Tensor: ...

    def weight_rows(self, indices: Tensor, /) -> Tensor:
        """Rows of W exactly as they were: a head that is its model's embedding too. int64 [T]
        -> [T, in]. Raises IndexError beyond W."""
        ...


class Kernels(Protocol):
    """The kernels of one device and dtype. `h` hidden size, `d` head size, T query tokens.

    Slots of the cache that were never written may hold anything finite.
    """

    def pack_linear(
        self,
        weight: Tensor | QuantizedWeight,
        bias: Tensor | None,
        *,
        out_dtype: torch.dtype | None = None,
    ) -> PackedLinear:
        """A layer of weight [out, in] and bias [out], which it may copy or keep: both stay as they
        are. Takes x of the kernels' dtype. Results are `out_dtype`; None: the kernels' dtype."""
        ...

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """x / rms(x) * weight along the last axis. [T, h] -> [T, h]."""
        ...

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """(rms_norm(x + residual), x + residual), each [T, h]. May overwrite x and residual."""
        ...

    def rope(
        self, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Rotates q [T, heads, d] and k [T, kv_heads, d], element i with element i + d/2.

        Both may be views of one tensor whose heads are contiguous, and may be overwritten.
        positions int64 [T]; cos_sin float32 [max_positions, d]: d/2 cosines, then d/2 sines.
        """
        ...

    def write_kv(self, k: Tensor, v: Tensor, cache: LayerCache, slot_mapping: Tensor) -> None:
        """Puts k, v [T, kv_heads, d] into the cache, quantised if it is."""
        ...

    def rope_write_kv(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        cache: LayerCache,
        slot_mapping: Tensor,
    ) -> Tensor:
        """`rope`, then `write_kv` of the rotated k. Returns q rotated; may overwrite q and k."""
        ...

    def paged_attention(
        self,
        q: Tensor,
        cache: LayerCache,
        meta: AttentionMeta,
        *,
        scale: float,
        window: int | None = None,
        softcap: float = 0.0,
    ) -> Tensor:
        """Causal grouped-query attention. q [T, heads, d] -> [T, heads, d].

        Query head i reads KV head i // (heads / kv_heads). A query sees itself and the `window - 1`
        tokens before it; None: everything before it. Scores s (scaled) become softcap * tanh(s /
        softcap) where softcap is not 0.
        """
        ...

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        """silu(gate) * up, from the two halves of the last axis. [T, 2 * f] -> [T, f]."""
        ...
