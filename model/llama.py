"""The Llama family's decoder, one rank of it.

    tokens > embedding > layers x (RMSNorm > attention > + > RMSNorm > SwiGLU > +) > RMSNorm > head

Batches are flattened: T tokens of any number of sequences, which only attention tells apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandem_kernels import AttentionMeta, Kernels, LayerCache
from torch import Tensor

from kv_cache.storage import KVStorage
from model.layers import (
    ColumnParallelLinear,
    ParallelHead,
    RowParallelLinear,
    VocabParallelEmbedding,
)


@dataclass(frozen=True, eq=False, slots=True)
class Attention:
    """Grouped-query attention over the paged cache; heads are this rank's."""

    qkv: ColumnParallelLinear
    output: RowParallelLinear
    num_heads: int
    num_kv_heads: int
    head_dim: int


@dataclass(frozen=True, eq=False, slots=True)
class Mlp:
    """SwiGLU: down(silu(gate(x)) * up(x)), gate and up stacked in one matrix."""

    gate_up: ColumnParallelLinear
    down: RowParallelLinear


@dataclass(frozen=True, eq=False, slots=True)
class DecoderLayer:
    input_norm: Tensor  # [hidden]
    attention: Attention
    mlp_norm: Tensor  # [hidden]
    mlp: Mlp


class CausalLM:
    """One rank of a decoder. Stateless: all that a sequence leaves behind is in the KV storage.

    All ranks of a group must call with the same arguments, in the same order.
    """

    def __init__(
        self,
        *,
        embedding: VocabParallelEmbedding,
        layers: Sequence[DecoderLayer],
        final_norm: Tensor,
        head: ParallelHead,
        rms_norm_eps: float,
        cos_sin: Tensor,
        kernels: Kernels,
        window: int | None,
        kv_heads: range,
    ) -> None:
        self.kv_heads = kv_heads
        """This rank's KV heads, by their numbers in the whole model."""
        self.window = window
        """Sliding window in tokens; None for full attention."""
        self.dtype = final_norm.dtype
        self.device = final_norm.device
        self._embedding = embedding
        self._layers = tuple(layers)
        # The norm after each layer is the next one's input norm, so adds and norms can be fused
        self._next_norms = (*(layer.input_norm for layer in self._layers[1:]), final_norm)
        self._head = head
        self._eps = rms_norm_eps
        self._cos_sin = cos_sin  # float32 [max_model_len, head_dim]
        self._kernels = kernels

    @property
    def max_positions(self) -> int:
        """Positions for which there are angles."""
        return self._cos_sin.shape[0]

    def forward(
        self, token_ids: Tensor, positions: Tensor, meta: AttentionMeta, storage: KVStorage
    ) -> Tensor:
        """Writes the KV of T tokens and returns their hidden states, ready for `logits`.

        token_ids, positions int64 [T] in the order of `meta`; -> [T, hidden].
        """
        assert storage.num_kv_heads == len(self.kv_heads)
        residual = self._embedding(token_ids)  # [T, hidden]
        x = self._kernels.rms_norm(residual, self._layers[0].input_norm, self._eps)
        for i, layer in enumerate(self._layers):
            x = self._attend(layer.attention, x, positions, meta, storage.layer(i))
            x, residual = self._kernels.add_rms_norm(x, residual, layer.mlp_norm, self._eps)
            x = layer.mlp.down(self._kernels.silu_mul(layer.mlp.gate_up(x)))
            x, residual = self._kernels.add_rms_norm(x, residual, self._next_norms[i], self._eps)
        return x

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token. [R, hidden] -> float32 [R, vocab], complete on every rank."""
        return self._head(hidden)

    def _attend(
        self,
        attention: Attention,
        x: Tensor,
        positions: Tensor,
        meta: AttentionMeta,
        cache: LayerCache,
    ) -> Tensor:
        num_q, num_kv = attention.num_heads, attention.num_kv_heads
        heads = attention.qkv(x).view(len(x), -1, attention.head_dim)  # [T, q + k + v heads, d]
        q, k = heads[:, :num_q], heads[:, num_q : num_q + num_kv]
        v = heads[:, num_q + num_kv :]
        q = self._kernels.rope_write_kv(q, k, v, positions, self._cos_sin, cache, meta.slot_mapping)
        attended = self._kernels.paged_attention(
            q, cache, meta, scale=attention.head_dim**-0.5, window=self.window
        )  # [T, q heads, d]
        return attention.output(attended.view(len(x), -1))
