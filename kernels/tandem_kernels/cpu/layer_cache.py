"""A layer's paged KV and a batch, as the C++ kernels take them: the structs of layer_cache.h."""

from __future__ import annotations

import ctypes
from weakref import WeakKeyDictionary

import torch

from tandem_kernels.interface import LayerCache

_P, _N, _I = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32

CACHE_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2, torch.float8_e4m3fn: 3}
"""`CacheType`."""
MAX_HEAD_DIM = 1024


class CacheStruct(ctypes.Structure):
    """`TandemLayerCache`, field by field."""

    _fields_ = (
        ("k", _P),
        ("v", _P),
        ("k_scales", _P),
        ("v_scales", _P),
        ("block_stride", _N),
        ("head_stride", _N),
        ("scale_block_stride", _N),
        ("scale_head_stride", _N),
        ("block_size", _N),
        ("num_kv_heads", _N),
        ("head_dim", _N),
        ("type", _I),
    )


class BatchStruct(ctypes.Structure):
    """`TandemBatch`, field by field."""

    _fields_ = (
        ("query_starts", _P),
        ("context_lens", _P),
        ("block_tables", _P),
        ("slot_mapping", _P),
        ("positions", _P),
        ("num_sequences", _N),
        ("table_width", _N),
    )


class CacheStructs:
    """The structs of layer caches, each made once and kept as long as its cache lives."""

    def __init__(self) -> None:
        self._structs: WeakKeyDictionary[LayerCache, CacheStruct] = WeakKeyDictionary()

    def of(self, cache: LayerCache) -> CacheStruct:
        struct = self._structs.get(cache)
        if struct is None:
            struct = self._structs[cache] = cache_struct(cache)
        return struct


def cache_struct(cache: LayerCache) -> CacheStruct:
    """Points into the cache's tensors, and doesn't keep them alive."""
    k, v, scales = cache.k, cache.v, cache.k_scales
    _, num_kv_heads, block_size, head_dim = k.shape
    assert head_dim <= MAX_HEAD_DIM
    assert v.dtype == k.dtype and v.stride() == k.stride()
    assert k.stride()[2:] == (head_dim, 1)
    assert (scales is not None) == (k.dtype.itemsize == 1)
    struct = CacheStruct(
        k=k.data_ptr(),
        v=v.data_ptr(),
        block_stride=k.stride(0) * k.dtype.itemsize,
        head_stride=k.stride(1) * k.dtype.itemsize,
        block_size=block_size,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        type=CACHE_TYPES[k.dtype],
    )
    if scales is not None:
        assert cache.v_scales is not None and cache.v_scales.stride() == scales.stride()
        assert scales.dtype == torch.bfloat16 and scales.stride(2) == 1
        struct.k_scales = scales.data_ptr()
        struct.v_scales = cache.v_scales.data_ptr()
        struct.scale_block_stride = scales.stride(0)
        struct.scale_head_stride = scales.stride(1)
    return struct
