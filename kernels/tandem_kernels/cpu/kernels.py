"""The C++ kernels behind the `Kernels` protocol. Rows' bits depend on nothing but the row."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from tandem_kernels.cpu.attention import PagedAttention
from tandem_kernels.cpu.decoder import CpuProgram
from tandem_kernels.cpu.elementwise import Elementwise
from tandem_kernels.cpu.kv_write import KVWriter
from tandem_kernels.cpu.layer_cache import CacheStructs
from tandem_kernels.cpu.linear import LinearPacker
from tandem_kernels.decoder import Activation, Decoder
from tandem_kernels.interface import AttentionMeta, LayerCache, StepProgram
from tandem_kernels.packed_linear import PackedLinear, QuantizedWeight

CPU_DTYPES = frozenset({torch.float32, torch.bfloat16})


class CpuKernels:
    """`Kernels` for CPU tensors of one dtype in `CPU_DTYPES`; one object per model.

    Every tensor's last axis is contiguous.
    """

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype) -> None:
        self._library = library
        self._elementwise = Elementwise(library, dtype)
        self._linears = LinearPacker(library, dtype)
        self._caches = CacheStructs()
        self._kv_writer = KVWriter(library, dtype, self._caches)
        self._attention = PagedAttention(library, dtype, self._caches)
        self.dtype = dtype

    def pack_linear(
        self,
        weight: Tensor | QuantizedWeight,
        bias: Tensor | None,
        *,
        out_dtype: torch.dtype | None = None,
    ) -> PackedLinear:
        return self._linears.pack(weight, bias, out_dtype=out_dtype)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        return self._elementwise.norm(x, weight, None, eps)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        return self._elementwise.norm(x, weight, bias, eps)

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Both results take the place of the arguments."""
        self._elementwise.add_rms_norm(x, residual, weight, eps)
        return x, residual

    def rope(
        self, q: Tensor, k: Tensor, positions: Tensor, cos_sin: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Rotates in place."""
        self._kv_writer.rope(q, positions, cos_sin)
        self._kv_writer.rope(k, positions, cos_sin)
        return q, k

    def write_kv(self, k: Tensor, v: Tensor, cache: LayerCache, slot_mapping: Tensor) -> None:
        self._kv_writer.write(k, v, cache, slot_mapping)

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
        """Rotates q in place."""
        self._kv_writer.rope_write(q, k, v, positions, cos_sin, cache, slot_mapping)
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
        return self._attention.attend(q, cache, meta, scale=scale, window=window, softcap=softcap)

    def activate(self, x: Tensor, activation: Activation, *, gated: bool) -> Tensor:
        return self._elementwise.activate(x, activation, gated=gated)

    def program(self, decoder: Decoder) -> StepProgram | None:
        return CpuProgram(self._library, decoder, self.dtype, self._caches)
