"""The C++ kernels behind the `Kernels` protocol. Rows' bits depend on nothing but the row."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from tandem_kernels.cpu.kv_write import KVWriter
from tandem_kernels.cpu.layer_cache import CacheStructs
from tandem_kernels.cpu.linear import LinearPacker
from tandem_kernels.cpu.signatures import ShapeStruct, declare
from tandem_kernels.decoder import Decoder
from tandem_kernels.interface import AttentionMeta, LayerCache, StepProgram
from tandem_kernels.packed_linear import PackedLinear, QuantizedWeight

CPU_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


class CpuKernels:
    """`Kernels` for CPU tensors of one dtype in `CPU_DTYPES`; one object per model.

    Every tensor's last axis is contiguous. Remembers the last step's batch, as all layers share it.
    """

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype) -> None:
        self._functions = declare(library, CPU_DTYPES[dtype])
        self._linears = LinearPacker(library)
        self._caches = CacheStructs()
        self._kv_writer = KVWriter(library, dtype, self._caches)
        self.dtype = dtype
        self._meta: AttentionMeta | None = None
        self._shapes: dict[int | None, ShapeStruct] = {}

    def pack_linear(
        self,
        weight: Tensor | QuantizedWeight,
        bias: Tensor | None,
        *,
        out_dtype: torch.dtype | None = None,
    ) -> PackedLinear:
        assert isinstance(weight, Tensor)
        return self._linears.pack(weight, bias, out_dtype=out_dtype)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        rows, width = x.shape
        out = torch.empty((rows, width), dtype=self.dtype)
        self._functions.rms_norm(
            x.data_ptr(), x.stride(0), weight.data_ptr(), out.data_ptr(), rows, width, eps
        )
        return out

    def add_rms_norm(
        self, x: Tensor, residual: Tensor, weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Both results take the place of the arguments."""
        assert x.is_contiguous() and residual.is_contiguous()
        rows, width = x.shape
        self._functions.add_rms_norm(
            x.data_ptr(), residual.data_ptr(), weight.data_ptr(), rows, width, eps
        )
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
        assert softcap == 0.0
        k_cache, v_cache = cache.k, cache.v
        out = torch.empty(q.shape, dtype=self.dtype)
        self._functions.paged_attention(
            self._shape_of(meta, q, cache, window),
            q.data_ptr(),
            q.stride(0),
            k_cache.data_ptr(),
            v_cache.data_ptr(),
            out.data_ptr(),
            scale,
        )
        return out

    def silu_mul(self, gate_up: Tensor) -> Tensor:
        assert gate_up.is_contiguous()
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = torch.empty((rows, width), dtype=self.dtype)
        self._functions.silu_mul(gate_up.data_ptr(), out.data_ptr(), rows, width)
        return out

    def program(self, decoder: Decoder) -> StepProgram | None:
        return None

    def _shape_of(
        self, meta: AttentionMeta, q: Tensor, cache: LayerCache, window: int | None
    ) -> ShapeStruct:
        """The first layer of a step and window describes batch and caches for the rest."""
        if self._meta is not meta:
            self._meta, self._shapes = meta, {}
        if window not in self._shapes:
            block_stride = _block_stride(cache.k, cache.v)
            self._shapes[window] = _shape(meta, q.shape[1], cache.k.shape, block_stride, window)
        return self._shapes[window]


def _block_stride(k_cache: Tensor, v_cache: Tensor) -> int:
    """Elements from one block to the next; within a block, caches are contiguous."""
    strides = k_cache.stride()
    assert strides == v_cache.stride()
    assert strides[1:] == (k_cache.shape[2] * k_cache.shape[3], k_cache.shape[3], 1)
    return strides[0]


def _shape(
    meta: AttentionMeta,
    num_heads: int,
    cache_shape: torch.Size,
    block_stride: int,
    window: int | None,
) -> ShapeStruct:
    _, num_kv_heads, block_size, head_dim = cache_shape
    for tensor in (meta.query_starts, meta.context_lens, meta.block_tables):
        assert tensor.dtype == torch.int32 and tensor.is_contiguous()
    return ShapeStruct(
        query_starts=meta.query_starts.data_ptr(),
        context_lens=meta.context_lens.data_ptr(),
        block_tables=meta.block_tables.data_ptr(),
        num_sequences=len(meta.context_lens),
        table_width=meta.block_tables.shape[1],
        window=window or 0,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        block_size=block_size,
        block_stride=block_stride,
    )
