"""How the bytes of a pool are keys and values: the views that kernels read and write."""

from __future__ import annotations

import torch
from tandem_kernels import LayerCache
from torch import Tensor

from core.kv_spec import KVSpec

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "int8": torch.int8,
    "fp8": torch.float8_e4m3fn,
}


def layer_caches(pool: Tensor, spec: KVSpec, head_dim: int) -> list[LayerCache]:
    """The layers of a pool uint8 [num_blocks, 2 x layers, heads' pieces], as views of it.

    A piece is a block's values [token, dim], then its scales [token] where there are any.
    """
    dtype, block_size = DTYPES[spec.dtype], spec.block_size
    # [num_blocks, layers, k/v, heads, piece_bytes]
    piece_bytes = block_size * spec.bytes_per_row(head_dim)
    pieces = pool.view(len(pool), -1, 2, pool.shape[2] // piece_bytes, piece_bytes)
    value_bytes = block_size * head_dim * dtype.itemsize
    values = pieces[..., :value_bytes].view(dtype)
    values = values.view(*pieces.shape[:4], block_size, head_dim)
    if not spec.is_quantized:
        return [LayerCache(kv[:, 0], kv[:, 1]) for kv in values.unbind(1)]
    scales = pieces[..., value_bytes:].view(torch.bfloat16)  # [.., heads, block_size]
    return [
        LayerCache(kv[:, 0], kv[:, 1], kv_scales[:, 0], kv_scales[:, 1])
        for kv, kv_scales in zip(values.unbind(1), scales.unbind(1), strict=True)
    ]
