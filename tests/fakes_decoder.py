"""Small random decoders of any family, and their forward pass op by op."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tandem_kernels import (
    Activation,
    AttentionMeta,
    Decoder,
    DecoderLayer,
    DecoderShape,
    Kernels,
    LayerCache,
    Norm,
    PackedLinear,
)
from torch import Tensor

VOCAB_SIZE = 80
MAX_POSITIONS = 512
SHAPE = DecoderShape(
    hidden_size=48,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    rotary_dim=16,
    inner_size=72,
    gated=True,
    activation="silu",
    norm_eps=1e-5,
    attention_scale=0.25,
)


@dataclass(frozen=True, slots=True)
class Family:
    """What families differ in beyond their shape."""

    shape: DecoderShape = SHAPE
    layer_norm: bool = False
    head_norms: bool = False
    parallel: bool = False
    post_norms: bool = False
    biases: bool = False
    windows: tuple[int | None, ...] = (None, None)
    """Of each layer."""
    tables: tuple[int, ...] = (0, 0)
    """The table of angles of each layer."""
    tied: bool = False
    """The head's weight is the embedding."""


def _family(activation: Activation = "silu", **shape: object) -> Family:
    return Family(dataclasses.replace(SHAPE, activation=activation, **shape))  # type: ignore[arg-type]


FAMILIES = {
    "llama": Family(tied=True),
    "qwen": dataclasses.replace(Family(), head_norms=True, biases=True, tied=True),
    "mistral": Family(windows=(40, 40)),
    "gemma": dataclasses.replace(
        _family("gelu_tanh", embedding_scale=6.93, attention_softcap=3.0, logits_softcap=2.0),
        post_norms=True,
        head_norms=True,
        windows=(24, None, 24),
        tables=(1, 0, 1),
        tied=True,
    ),
    "phi": dataclasses.replace(
        _family("gelu", gated=False, rotary_dim=8), parallel=True, layer_norm=True, biases=True
    ),
    "plain mlp": dataclasses.replace(_family("gelu_tanh", gated=False), layer_norm=True),
    "odd sizes": _family(
        "gelu",
        hidden_size=37,
        num_heads=3,
        num_kv_heads=3,
        head_dim=10,
        rotary_dim=6,
        inner_size=29,
    ),
}


def random_decoder(kernels: Kernels, family: Family, dtype: torch.dtype, seed: int = 0) -> Decoder:
    """The same weights for the same seed, whatever the kernels."""
    return _Maker(kernels, family, dtype, seed).decoder()


class _Maker:
    def __init__(self, kernels: Kernels, family: Family, dtype: torch.dtype, seed: int) -> None:
        self._kernels = kernels
        self._family = family
        self._dtype = dtype
        self._generator = torch.Generator().manual_seed(seed)

    def decoder(self) -> Decoder:
        shape, family = self._family.shape, self._family
        weight = self._random(VOCAB_SIZE, shape.hidden_size)
        bias = self._random(VOCAB_SIZE) if family.biases else None
        head = self._kernels.pack_linear(weight, bias, out_dtype=torch.float32)
        table = self._random(VOCAB_SIZE, shape.hidden_size)
        return Decoder(
            shape=shape,
            layers=tuple(map(self._layer, family.windows, family.tables)),
            embedding=head if family.tied else table,
            final_norm=self._norm(shape.hidden_size),
            head=head,
            cos_sin=tuple(self._angles() for _ in range(max(family.tables) + 1)),
        )

    def _layer(self, window: int | None, table: int) -> DecoderLayer:
        shape, family = self._family.shape, self._family
        hidden, attended = shape.hidden_size, shape.num_heads * shape.head_dim
        qkv = attended + 2 * shape.num_kv_heads * shape.head_dim
        return DecoderLayer(
            input_norm=self._norm(hidden),
            qkv=self._linear(qkv, hidden),
            output=self._linear(hidden, attended),
            mlp_norm=None if family.parallel else self._norm(hidden),
            gate_up=self._linear((1 + shape.gated) * shape.inner_size, hidden),
            down=self._linear(hidden, shape.inner_size),
            q_norm=self._norm(shape.head_dim) if family.head_norms else None,
            k_norm=self._norm(shape.head_dim) if family.head_norms else None,
            post_attention_norm=self._norm(hidden) if family.post_norms else None,
            post_mlp_norm=self._norm(hidden) if family.post_norms else None,
            window=window,
            cos_sin=table,
        )

    def _linear(self, outputs: int, inputs: int) -> PackedLinear:
        bias = self._random(outputs) if self._family.biases else None
        return self._kernels.pack_linear(self._random(outputs, inputs) * inputs**-0.5, bias)

    def _norm(self, size: int) -> Norm:
        weight = self._random(size)
        return Norm(weight, self._random(size) if self._family.layer_norm else None)

    def _random(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator).to(self._dtype)

    def _angles(self) -> Tensor:
        size = (MAX_POSITIONS, self._family.shape.rotary_dim // 2)
        turns = torch.rand(size, generator=self._generator) * 6
        return torch.cat((turns.cos(), turns.sin()), 1)


def forward_op_by_op(
    kernels: Kernels,
    decoder: Decoder,
    token_ids: Tensor,
    positions: Tensor,
    meta: AttentionMeta,
    caches: list[LayerCache],
) -> Tensor:
    """Hidden states of all rows, by the formulas of `tandem_kernels.decoder`."""
    embedding = decoder.embedding
    if isinstance(embedding, Tensor):
        residual = F.embedding(token_ids, embedding)
    else:
        residual = embedding.weight_rows(token_ids)
    residual = residual * decoder.shape.embedding_scale
    ops = _Ops(kernels, decoder)
    for layer, cache in zip(decoder.layers, caches, strict=True):
        residual = ops.layer(layer, residual, positions, meta, cache)
    return ops.norm(decoder.final_norm, residual)


def logits_op_by_op(decoder: Decoder, hidden: Tensor) -> Tensor:
    logits, cap = decoder.head(hidden), decoder.shape.logits_softcap
    return torch.tanh(logits / cap) * cap if cap else logits


@dataclass(frozen=True, eq=False, slots=True)
class _Ops:
    kernels: Kernels
    decoder: Decoder

    def layer(
        self,
        layer: DecoderLayer,
        residual: Tensor,
        positions: Tensor,
        meta: AttentionMeta,
        cache: LayerCache,
    ) -> Tensor:
        normed = self.norm(layer.input_norm, residual)
        attended = self.attend(layer, normed, positions, meta, cache)
        if layer.mlp_norm is None:
            return residual + (attended + self.mlp(layer, normed))
        residual = residual + self.norm(layer.post_attention_norm, attended)
        out = self.mlp(layer, self.norm(layer.mlp_norm, residual))
        return residual + self.norm(layer.post_mlp_norm, out)

    def attend(
        self,
        layer: DecoderLayer,
        x: Tensor,
        positions: Tensor,
        meta: AttentionMeta,
        cache: LayerCache,
    ) -> Tensor:
        shape = self.decoder.shape
        heads = layer.qkv(x).view(len(x), -1, shape.head_dim)
        first_k, first_v = shape.num_heads, shape.num_heads + shape.num_kv_heads
        q = self.norm(layer.q_norm, heads[:, :first_k])
        k, v = self.norm(layer.k_norm, heads[:, first_k:first_v]), heads[:, first_v:]
        angles = self.decoder.cos_sin[layer.cos_sin]
        q = self.kernels.rope_write_kv(q, k, v, positions, angles, cache, meta.slot_mapping)
        attended = self.kernels.paged_attention(
            q,
            cache,
            meta,
            scale=shape.attention_scale,
            window=layer.window,
            softcap=shape.attention_softcap,
        )
        return layer.output(attended.view(len(x), -1))

    def mlp(self, layer: DecoderLayer, x: Tensor) -> Tensor:
        shape = self.decoder.shape
        inner = self.kernels.activate(layer.gate_up(x), shape.activation, gated=shape.gated)
        return layer.down(inner)

    def norm(self, norm: Norm | None, x: Tensor) -> Tensor:
        if norm is None:
            return x
        eps = self.decoder.shape.norm_eps
        if norm.bias is None:
            return self.kernels.rms_norm(x, norm.weight, eps)
        return self.kernels.layer_norm(x, norm.weight, norm.bias, eps)
