"""Plain torch twins of every kernel: right on any device, and the measure of faster ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from tandem_kernels.attention_plan import AttentionPlan, plan_attention
from tandem_kernels.decoder import Activation, Decoder
from tandem_kernels.interface import AttentionMeta, LayerCache, StepProgram
from tandem_kernels.packed_linear import PackedLinear, QuantizedWeight
from tandem_kernels.reference_attention import attend
from tandem_kernels.reference_kv_cache import write_rows
from tandem_kernels.reference_linear import ReferenceLinear, ReferenceQuantizedLinear


class ReferenceKernels:
    """`Kernels` in plain torch; one object per model, since it remembers the last step's plan."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        """`dtype` is that of the results of quantised weights."""
        self._dtype = dtype
        self._meta: AttentionMeta | None = None
        self._plans: dict[int | None, AttentionPlan] = {}

    def pack_linear(
        self,
        weight: Tensor | QuantizedWeight,
        bias: Tensor | None,
        *,
        out_dtype: torch.dtype | None = None,
    ) -> PackedLinear:
        if isinstance(weight, Tensor):
            return ReferenceLinear(weight, bias, out_dtype or weight.dtype)
        return ReferenceQuantizedLinear(weight, bias, out_dtype or self._dtype, self._dtype)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, eps)

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        total = residual.add_(x)
        return self.rms_norm(total, weight, eps), total

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)

    def rope(
        self, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        cos, sin = cos_sin.index_select(0, positions).unsqueeze(1).chunk(2, dim=-1)  # [T, 1, r/2]
        return _rotate(q, cos, sin), _rotate(k, cos, sin)

    def write_kv(self, k: Tensor, v: Tensor, cache: LayerCache, slot_mapping: Tensor) -> None:
        write_rows(k, cache.k, cache.k_scales, slot_mapping)
        write_rows(v, cache.v, cache.v_scales, slot_mapping)

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
        q, k = self.rope(q, k, positions, cos_sin)
        self.write_kv(k, v, cache, slot_mapping)
        return q

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
        plan = self._plan_of(meta, cache.k, window)
        return attend(q, cache, plan, scale, softcap)

    def activate(self, x: Tensor, activation: Activation, *, gated: bool) -> Tensor:
        return reference_activate(x, activation, gated=gated)

    def program(self, decoder: Decoder) -> StepProgram | None:
        return None

    def _plan_of(self, meta: AttentionMeta, k_cache: Tensor, window: int | None) -> AttentionPlan:
        """All layers of a step pass the same meta: the first one of a window plans for the rest."""
        if self._meta is not meta:
            self._meta, self._plans = meta, {}
        if window not in self._plans:
            num_kv_heads, block_size = k_cache.shape[1], k_cache.shape[2]
            self._plans[window] = plan_attention(meta, num_kv_heads, block_size, window)
        return self._plans[window]


def reference_activate(x: Tensor, activation: Activation, *, gated: bool) -> Tensor:
    """`Kernels.activate`, computed in float32."""
    if not gated:
        return _ACTIVATIONS[activation](x.float()).to(x.dtype)
    gate, up = x.float().chunk(2, dim=-1)
    return _ACTIVATIONS[activation](gate).mul_(up).to(x.dtype)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """In float32 whatever x is: bfloat16 tables would lose positions beyond 256. [T, heads, d]."""
    rotary_dim = 2 * cos.shape[-1]
    low, high = x[..., :rotary_dim].float().chunk(2, dim=-1)
    rotated = torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1).to(x.dtype)
    return torch.cat((rotated, x[..., rotary_dim:]), dim=-1)


_ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": partial(F.gelu, approximate="tanh"),
}
