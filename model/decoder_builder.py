"""Assembles one rank of a decoder from its card, its heads, and its layers' weights."""

from __future__ import annotations

import torch
from tandem_kernels import Decoder, DecoderLayer, DecoderShape, Norm, PackedLinear

from model.head_partition import RankHeads
from model.layer_weights import LayerWeights
from model.rope import cos_sin_table
from model.tensor_parallel import TensorParallel
from model.weight_parts import WeightPart, stacked_parts
from text.card import ModelCard
from text.families.registry import family_named


class DecoderBuilder:
    """Layers all follow from the card, the rank's heads and `tp`.

    Rows of qkv, gate and up, and columns of output and down, are the rank's own; norms are whole.
    """

    def __init__(
        self, card: ModelCard, weights: LayerWeights, heads: RankHeads, tp: TensorParallel
    ) -> None:
        self._card = card
        self._family = family_named(card.architecture)
        self._weights = weights
        self._heads = heads
        self._tp = tp
        self._inner = tp.share(card.intermediate_size)

    def decoder(self, dtype: torch.dtype, device: torch.device) -> Decoder:
        """Computes in `dtype` on `device`, where the weights already go."""
        card, family = self._card, self._family
        tokens = self._tp.share(card.vocab_size)
        head = self._head(tokens)
        embedding = WeightPart(family.embedding, tokens)
        ropes = [card.rope] if card.local_rope is None else [card.rope, card.local_rope]
        return Decoder(
            shape=self._shape(dtype),
            layers=tuple(self._layer(i) for i in range(card.num_layers)),
            embedding=head if card.tie_word_embeddings else self._weights.rows(embedding),
            final_norm=self._weights.norm(family.final_norm),
            head=head,
            cos_sin=tuple(
                cos_sin_table(rope, card.rotary_dim, card.max_model_len, device) for rope in ropes
            ),
        )

    def _shape(self, dtype: torch.dtype) -> DecoderShape:
        card = self._card
        return DecoderShape(
            hidden_size=card.hidden_size,
            num_heads=len(self._heads.query),
            num_kv_heads=len(self._heads.kv),
            head_dim=card.head_dim,
            rotary_dim=card.rotary_dim,
            inner_size=len(self._inner),
            gated=self._family.layer.gate is not None,
            activation=card.activation,
            norm_eps=card.norm_eps,
            attention_scale=card.attention_scale,
            attention_softcap=card.attention_softcap,
            logits_softcap=card.logits_softcap,
            # Rounded before it multiplies, as those who trained with it did
            embedding_scale=float(torch.tensor(card.embedding_scale, dtype=dtype)),
        )

    def _head(self, tokens: range) -> PackedLinear:
        card, family = self._card, self._family
        module = family.embedding if card.tie_word_embeddings else family.head
        return self._weights.linear(
            [WeightPart(module, tokens)],
            bias=[WeightPart(family.head, tokens)] if card.head_bias else (),
            out_dtype=torch.float32,
        )

    def _layer(self, i: int) -> DecoderLayer:
        card, names = self._card, self._family.layer
        prefix, window = self._family.layer_prefix(i), card.windows[i]
        return DecoderLayer(
            input_norm=self._weights.norm(prefix + names.input_norm),
            qkv=self._qkv(prefix),
            output=self._row_parallel(
                prefix + names.output,
                _rows(self._heads.query, card.head_dim),
                has_bias=card.attention_output_bias,
            ),
            mlp_norm=self._norm(prefix, names.mlp_norm),
            gate_up=self._gate_up(prefix),
            down=self._row_parallel(prefix + names.down, self._inner, has_bias=card.mlp_bias),
            q_norm=self._norm(prefix, names.q_norm if card.qk_norm else None),
            k_norm=self._norm(prefix, names.k_norm if card.qk_norm else None),
            post_attention_norm=self._norm(prefix, names.post_attention_norm),
            post_mlp_norm=self._norm(prefix, names.post_mlp_norm),
            window=window,
            cos_sin=0 if card.local_rope is None or window is None else 1,
        )

    def _norm(self, prefix: str, name: str | None) -> Norm | None:
        return None if name is None else self._weights.norm(prefix + name)

    def _qkv(self, prefix: str) -> PackedLinear:
        card, names = self._card, self._family.layer
        query, kv = (_rows(heads, card.head_dim) for heads in (self._heads.query, self._heads.kv))
        q_size, kv_size = card.num_heads * card.head_dim, card.num_kv_heads * card.head_dim
        parts = stacked_parts(
            (
                (prefix + names.q, q_size, query),
                (prefix + names.k, kv_size, kv),
                (prefix + names.v, kv_size, kv),
            )
        )
        return self._weights.linear(parts, bias=parts if card.attention_bias else ())

    def _gate_up(self, prefix: str) -> PackedLinear:
        names, inner = self._family.layer, self._card.intermediate_size
        gate = () if names.gate is None else ((prefix + names.gate, inner, self._inner),)
        parts = stacked_parts((*gate, (prefix + names.up, inner, self._inner)))
        return self._weights.linear(parts, bias=parts if self._card.mlp_bias else ())

    def _row_parallel(self, module: str, columns: range, *, has_bias: bool) -> PackedLinear:
        """Only rank 0 has the bias: the sum over ranks must contain it once."""
        part = WeightPart(module, range(self._card.hidden_size))
        bias = [part] if has_bias and self._tp.rank == 0 else ()
        return self._weights.linear([part], columns=columns, bias=bias)


def _rows(heads: range, head_dim: int) -> range:
    return range(heads.start * head_dim, heads.stop * head_dim)
