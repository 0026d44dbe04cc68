"""A decoder of any family as data: what every backend reads, op by op or in one call a step.

    tokens > embedding (x embedding_scale) > layers > final norm > head (softcap)

    sequential layer   x += post(attention(norm(x)));  x += post(mlp(norm(x)))
    parallel layer     x += (attention(norm(x)) + mlp(norm(x)))                   (mlp_norm is None)

    attention   qkv > q/k norm of each head > RoPE of `rotary_dim` > paged attention > output
    mlp         gated: down(act(gate) * up), gate and up stacked; else down(act(up))

What is between operations, x and the summands of a parallel layer included, is rounded to the
kernels' dtype. Sizes are this rank's. Weights are ready to use: a norm that multiplies with 1 + w
holds 1 + w.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from tandem_kernels.packed_linear import PackedLinear

Activation = Literal["silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True, eq=False, slots=True)
class Norm:
    """RMSNorm (weight only) or LayerNorm (with mean, where `bias` is given)."""

    weight: Tensor
    """[size], of the kernels' dtype."""
    bias: Tensor | None = None


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """What all layers have in common."""

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    """The first so many elements of a head are rotated, i with i + rotary_dim / 2."""
    inner_size: int
    """Of the MLP: gate_up has 2 x inner_size outputs where `gated`, else inner_size."""
    gated: bool
    activation: Activation
    norm_eps: float
    attention_scale: float
    attention_softcap: float = 0.0
    logits_softcap: float = 0.0
    """Logits s become softcap * tanh(s / softcap); 0: none."""
    embedding_scale: float = 1.0
    """The product is rounded to the kernels' dtype; the factor isn't."""


@dataclass(frozen=True, eq=False, slots=True)
class DecoderLayer:
    """One layer's weights."""

    input_norm: Norm
    qkv: PackedLinear
    """[T, hidden] -> [T, (heads + 2 kv_heads) * head_dim]."""
    output: PackedLinear
    """[T, heads * head_dim] -> [T, hidden]."""
    mlp_norm: Norm | None
    """None: the MLP reads the input norm's result too (parallel layer)."""
    gate_up: PackedLinear
    down: PackedLinear
    q_norm: Norm | None = None
    """[head_dim], of every query head before RoPE."""
    k_norm: Norm | None = None
    post_attention_norm: Norm | None = None
    """Of the attention's output before it is added."""
    post_mlp_norm: Norm | None = None
    window: int | None = None
    """Sliding window in tokens; None: full attention."""
    cos_sin: int = 0
    """Which of the decoder's tables of angles."""


@dataclass(frozen=True, eq=False, slots=True)
class Decoder:
    """One rank of a decoder."""

    shape: DecoderShape
    layers: tuple[DecoderLayer, ...]
    embedding: Tensor | PackedLinear
    """Unscaled rows [vocab, hidden] of the kernels' dtype, or the layer whose weight they are."""
    final_norm: Norm
    head: PackedLinear
    """[R, hidden] -> float32 [R, vocab]; may have a bias."""
    cos_sin: tuple[Tensor, ...]
    """float32 [max_positions, rotary_dim] each: cosines, then sines."""
