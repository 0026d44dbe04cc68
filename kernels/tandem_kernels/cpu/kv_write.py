"""Rotary embedding and the writing of KV: the Python side of rope.cpp and kv_write.cpp."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from tandem_kernels.cpu.layer_cache import BatchStruct, CacheStruct, CacheStructs
from tandem_kernels.interface import LayerCache

_P, _N, _I = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
_STRUCTS = (ctypes.POINTER(BatchStruct), ctypes.POINTER(CacheStruct))

ELEMENT_TYPES = {torch.float32: 0, torch.bfloat16: 1}
"""`ElementType` of linear_tile.h."""


class KVWriter:
    """Rotates and writes tensors of one dtype; caches may have any type of `CACHE_TYPES`."""

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype, structs: CacheStructs) -> None:
        self._element = ELEMENT_TYPES[dtype]
        self._structs = structs
        self._rope = library.tandem_rope
        self._rope.argtypes = (_I, _P, _N, _N, _N, _P, _N, _P, _N)
        self._rope.restype = None
        self._write = library.tandem_rope_write_kv
        self._write.argtypes = (*_STRUCTS, _I, _P, _N, _N, _P, _N, _P, _N, _P, _N, _N)
        self._write.restype = None

    def rope(self, x: Tensor, positions: Tensor, cos_sin: Tensor) -> None:
        """Rotates x [T, heads, d] in place."""
        num_tokens, num_heads, head_dim = x.shape
        self._rope(
            self._element,
            x.data_ptr(),
            x.stride(0),
            num_heads,
            head_dim,
            cos_sin.data_ptr(),
            cos_sin.shape[1],
            positions.data_ptr(),
            num_tokens,
        )

    def write(self, k: Tensor, v: Tensor, cache: LayerCache, slot_mapping: Tensor) -> None:
        """Writes k, v [T, kv_heads, d]."""
        batch = BatchStruct(slot_mapping=slot_mapping.data_ptr())
        where = (k.data_ptr(), k.stride(0), v.data_ptr(), v.stride(0))
        struct = self._structs.of(cache)
        self._write(batch, struct, self._element, None, 0, 0, *where, None, 0, len(k))

    def rope_write(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        positions: Tensor,
        cos_sin: Tensor,
        cache: LayerCache,
        slot_mapping: Tensor,
    ) -> None:
        """Rotates q in place, and writes k rotated, and v."""
        self._write(
            BatchStruct(slot_mapping=slot_mapping.data_ptr(), positions=positions.data_ptr()),
            self._structs.of(cache),
            self._element,
            q.data_ptr(),
            q.stride(0),
            q.shape[1],
            k.data_ptr(),
            k.stride(0),
            v.data_ptr(),
            v.stride(0),
            cos_sin.data_ptr(),
            cos_sin.shape[1],
            len(q),
        )
