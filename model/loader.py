"""Builds one rank of a model from its checkpoint.

card > open checkpoint > every tensor there, of the right shape? > read this rank's parts > model
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from tandem_kernels import Kernels, select
from torch import Tensor

from model.checkpoint import open_checkpoint
from model.head_partition import HeadPartition, RankHeads
from model.layers import (
    ColumnParallelLinear,
    ParallelHead,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from model.llama import Attention, CausalLM, DecoderLayer, Mlp
from model.llama_tensors import (
    EMBEDDING,
    FINAL_NORM,
    HEAD,
    check_tensors,
    layer_prefix,
    llama_tensors,
)
from model.rank_weights import RankWeights
from model.rope import cos_sin_table
from model.tensor_parallel import TensorParallel
from text.card import ModelCard
from text.progress import Progress, silent


def load_model(
    card: ModelCard,
    *,
    dtype: torch.dtype,
    device: torch.device,
    tp: TensorParallel,
    progress: Progress = silent,
) -> CausalLM:
    """Reads this rank's share of the weights, as `dtype`, onto `device`.

    `progress` counts the rank's bytes in memory. Raises ConfigError when the checkpoint lacks
    tensors, holds unknown ones or wrong shapes, or when `tp` has more ranks than the model allows.
    """
    heads = HeadPartition(card.num_heads, card.num_kv_heads, tp.size).rank(tp.rank)
    with open_checkpoint(card) as checkpoint:
        check_tensors(card, checkpoint.shapes)
        weights = RankWeights(
            checkpoint,
            dtype=dtype,
            device=device,
            progress=progress,
            total_bytes=_rank_bytes(card, dtype, tp),
        )
        return _Builder(card, weights, heads, tp, select(device, dtype)).model(device)


class _Builder:
    """Assembles layers, whose parts all follow from the card, the rank's heads and `tp`."""

    def __init__(
        self,
        card: ModelCard,
        weights: RankWeights,
        heads: RankHeads,
        tp: TensorParallel,
        kernels: Kernels,
    ) -> None:
        self._card = card
        self._weights = weights
        self._heads = heads
        self._tp = tp
        self._kernels = kernels

    def model(self, device: torch.device) -> CausalLM:
        card, tp = self._card, self._tp
        tokens = tp.share(card.vocab_size)
        tied = card.tie_word_embeddings
        head = self._kernels.pack_linear(
            self._weights.read(EMBEDDING if tied else HEAD, tokens), None, out_dtype=torch.float32
        )
        rows = head.weight_rows if tied else self._embedding_rows(tokens)
        return CausalLM(
            embedding=VocabParallelEmbedding(rows, tokens, tp),
            layers=[self._layer(layer_prefix(i)) for i in range(card.num_layers)],
            final_norm=self._weights.read(FINAL_NORM),
            head=ParallelHead(head, card.vocab_size, tp),
            rms_norm_eps=card.rms_norm_eps,
            cos_sin=cos_sin_table(card.rope, card.head_dim, card.max_model_len, device),
            kernels=self._kernels,
            window=card.sliding_window,
            kv_heads=self._heads.kv,
        )

    def _embedding_rows(self, tokens: range) -> Callable[[Tensor], Tensor]:
        weight = self._weights.read(EMBEDDING, tokens)
        return lambda token_ids: F.embedding(token_ids, weight)

    def _layer(self, prefix: str) -> DecoderLayer:
        return DecoderLayer(
            input_norm=self._weights.read(f"{prefix}input_layernorm.weight"),
            attention=self._attention(f"{prefix}self_attn."),
            mlp_norm=self._weights.read(f"{prefix}post_attention_layernorm.weight"),
            mlp=self._mlp(f"{prefix}mlp."),
        )

    def _attention(self, prefix: str) -> Attention:
        card, query = self._card, _rows(self._heads.query, self._card.head_dim)
        kv = _rows(self._heads.kv, card.head_dim)
        parts = ((f"{prefix}q_proj", query), (f"{prefix}k_proj", kv), (f"{prefix}v_proj", kv))
        return Attention(
            qkv=self._column_parallel(parts, has_bias=card.attention_bias),
            output=self._row_parallel(f"{prefix}o_proj", query, card.attention_output_bias),
            num_heads=len(self._heads.query),
            num_kv_heads=len(self._heads.kv),
            head_dim=card.head_dim,
        )

    def _mlp(self, prefix: str) -> Mlp:
        inner = self._tp.share(self._card.intermediate_size)
        parts = ((f"{prefix}gate_proj", inner), (f"{prefix}up_proj", inner))
        return Mlp(
            gate_up=self._column_parallel(parts, has_bias=self._card.mlp_bias),
            down=self._row_parallel(f"{prefix}down_proj", inner, self._card.mlp_bias),
        )

    def _column_parallel(
        self, parts: tuple[tuple[str, range], ...], *, has_bias: bool
    ) -> ColumnParallelLinear:
        weight, bias = self._stack(parts, "weight"), self._bias(parts, has_bias)
        return ColumnParallelLinear(self._kernels.pack_linear(weight, bias))

    def _bias(self, parts: tuple[tuple[str, range], ...], has_bias: bool) -> Tensor | None:
        return self._stack(parts, "bias") if has_bias else None

    def _stack(self, parts: tuple[tuple[str, range], ...], kind: str) -> Tensor:
        return self._weights.stack(*((f"{name}.{kind}", rows) for name, rows in parts))

    def _row_parallel(self, name: str, columns: range, has_bias: bool) -> RowParallelLinear:
        holds_bias = has_bias and self._tp.rank == 0
        weight = self._weights.read(f"{name}.weight", columns=columns)
        bias = self._weights.read(f"{name}.bias") if holds_bias else None
        return RowParallelLinear(self._kernels.pack_linear(weight, bias), self._tp)


def _rows(heads: range, head_dim: int) -> range:
    return range(heads.start * head_dim, heads.stop * head_dim)


def _rank_bytes(card: ModelCard, dtype: torch.dtype, tp: TensorParallel) -> int:
    """About what this rank will hold: for a progress bar, not for planning memory."""
    num_elements = sum(math.prod(shape) for shape in llama_tensors(card).values())
    return num_elements * dtype.itemsize // tp.size
