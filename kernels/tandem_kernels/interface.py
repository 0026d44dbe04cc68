"""What a backend computes for a decoder layer, and how a batch is described to it.

    tokens     | d0 | d1 | ... | p0 p0 p0 p0 | p1 p1 |      flattened, no padding
                 `num_decode` rows of 1       prefill chunks of any length
    query_starts 0    1    2 ...             each sequence's first row, and T at the end

A sequence's queries are the *last* tokens of its context, whose KV `write_kv` has already put into
the cache, so attention reads keys and values from the cache only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tandem_kernels.decoder import Activation, Decoder
from tandem_kernels.packed_linear import PackedLinear, QuantizedWeight


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


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
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


class StepProgram(Protocol):
    """All layers of one decoder in one call: the same bits as the same kernels op by op.

    A caller passes the same `caches` object at every step of a storage: what a program derives from
    it is remembered. All methods raise IndexError for a token id or position that has no row,
    before anything is written.
    """

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        meta: AttentionMeta,
        caches: Sequence[LayerCache],
        rows: Tensor | None = None,
    ) -> Tensor:
        """Embedding to final norm; writes the KV of T tokens. token_ids, positions int64 [T].

        -> [T, hidden], or the rows of int64 [R] only, [R, hidden] in their order: what other rows
        would need beyond their KV is left out, so ask for no more than is read.
        """
        ...

    def step(
        self,
        token_ids: Tensor,
        positions: Tensor,
        meta: AttentionMeta,
        caches: Sequence[LayerCache],
        rows: Tensor,
        only_largest: Tensor | None = None,
    ) -> Tensor:
        """`logits` of `forward`, in one call. -> float32 [R, vocab].

        Of rows marked in `only_largest`, uint8 [R], only the largest logits are asked for: they are
        exact, with all that equal them, and others may be anything below.
        """
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[R, hidden] -> float32 [R, vocab]."""
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
        """x / rms(x) * weight along the last axis: x [T, h], or [T, heads, d] with contiguous
        heads, all of which the weight [d] serves. -> the same shape, contiguous."""
        ...

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """(rms_norm(x + residual), x + residual), each [T, h]. May overwrite x and residual."""
        ...

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        """(x - mean(x)) / deviation(x) * weight + bias along the last axis; shapes as `rms_norm`'s.
        eps is added to the variance."""
        ...

    def rope(
        self, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Rotates q [T, heads, d] and k [T, kv_heads, d], element i with element i + r/2.

        Both may be views of one tensor whose heads are contiguous, and may be overwritten.
        positions int64 [T]; cos_sin float32 [max_positions, r]: r/2 cosines, then r/2 sines.
        Elements of a head from r on stay as they are.
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

    def activate(self, x: Tensor, activation: Activation, *, gated: bool) -> Tensor:
        """act(gate) * up, from the two halves of the last axis: [T, 2 * f] -> [T, f]; or, not
        gated, act(x): [T, f] -> [T, f]. May overwrite x."""
        ...

    def program(self, decoder: Decoder) -> StepProgram | None:
        """The decoder's layers in one call; None: this backend goes op by op."""
        ...
