"""Paged attention: the Python side of attention.cpp."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from tandem_kernels.cpu.kv_write import ELEMENT_TYPES
from tandem_kernels.cpu.layer_cache import BatchStruct, CacheStruct, CacheStructs
from tandem_kernels.interface import AttentionMeta, LayerCache

_P, _N, _I, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


class AttentionStruct(ctypes.Structure):
    """`TandemAttention`, field by field."""

    _fields_ = (("num_heads", _N), ("window", _N), ("scale", _F), ("softcap", _F))


class PagedAttention:
    """Attention with queries of one dtype; caches may have any type of `CACHE_TYPES`.

    Remembers the last step's batch, as all layers share it.
    """

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype, structs: CacheStructs) -> None:
        self._dtype = dtype
        self._structs = structs
        self._meta: AttentionMeta | None = None
        self._batch = BatchStruct()
        self._attend = library.tandem_paged_attention
        pointers = (BatchStruct, AttentionStruct, CacheStruct)
        self._attend.argtypes = (*map(ctypes.POINTER, pointers), _I, _P, _N, _P)
        self._attend.restype = None

    def attend(
        self,
        q: Tensor,
        cache: LayerCache,
        meta: AttentionMeta,
        *,
        scale: float,
        window: int | None,
        softcap: float,
    ) -> Tensor:
        """`Kernels.paged_attention`."""
        if self._meta is not meta:
            self._meta, self._batch = meta, _batch_struct(meta)
        num_heads, head_dim = q.shape[1:]
        assert q.dtype == self._dtype and (num_heads == 1 or q.stride(1) == head_dim)
        out = torch.empty(q.shape, dtype=q.dtype)
        self._attend(
            self._batch,
            AttentionStruct(num_heads, window or 0, scale, softcap),
            self._structs.of(cache),
            ELEMENT_TYPES[q.dtype],
            q.data_ptr(),
            q.stride(0),
            out.data_ptr(),
        )
        return out


def _batch_struct(meta: AttentionMeta) -> BatchStruct:
    """What attention reads of a batch: points into the tensors of `meta`."""
    for tensor in (meta.query_starts, meta.context_lens, meta.block_tables):
        assert tensor.dtype == torch.int32 and tensor.is_contiguous()
    return BatchStruct(
        query_starts=meta.query_starts.data_ptr(),
        context_lens=meta.context_lens.data_ptr(),
        block_tables=meta.block_tables.data_ptr(),
        num_sequences=len(meta.context_lens),
        table_width=meta.block_tables.shape[1],
    )
