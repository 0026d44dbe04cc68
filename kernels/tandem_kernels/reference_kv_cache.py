"""Torch twin of what the KV cache stores: quantised rows written, and read back.

A row is one token's key or value of one head. Its scale is the largest magnitude in it over the
largest of the type (127 for int8, 448 for fp8), rounded up to bfloat16: nothing clips, and a row's
bits follow from that row alone, whatever else its block holds and in which order it came.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""The largest value of each quantised type."""


def quantize_rows(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x [..., d] as values of `dtype` [..., d] and bfloat16 scales [...]. Ties round to even."""
    x = x.float()
    scales = _up_to_bfloat16(x.abs().amax(-1) / LARGEST[dtype])
    scaled = x * scales.reciprocal().unsqueeze(-1)
    values = scaled.round() if dtype == torch.int8 else scaled
    return values.to(dtype), scales.bfloat16()


def dequantize(values: Tensor, scales: Tensor | None) -> Tensor:
    """float32 [..., d] from values [..., d] and scales [...]; None: the values themselves."""
    return values.float() if scales is None else values.float() * scales.float().unsqueeze(-1)


def write_rows(rows: Tensor, values: Tensor, scales: Tensor | None, slots: Tensor) -> None:
    """Puts rows [T, kv_heads, d] into values [num_blocks, kv_heads, block_size, d] and, if these
    are quantised, scales [num_blocks, kv_heads, block_size]. slots int64 [T]."""
    block_size = values.shape[2]
    blocks = torch.div(slots, block_size, rounding_mode="floor")
    where = (blocks, slots - blocks * block_size)
    # [num_blocks, block_size, kv_heads, ...]: views, so the cache itself is written
    if scales is None:
        values.permute(0, 2, 1, 3).index_put_(where, rows.to(values.dtype))
        return
    quantized, row_scales = quantize_rows(rows, values.dtype)
    values.permute(0, 2, 1, 3).index_put_(where, quantized)
    scales.permute(0, 2, 1).index_put_(where, row_scales)


def gather_planes(values: Tensor, scales: Tensor | None, planes: Tensor) -> Tensor:
    """(block, head) planes of [num_blocks, kv_heads, block_size, d], as float32.

    planes int64 [n], block * kv_heads + head. Returns [n, block_size, d].
    """
    num_kv_heads = values.shape[1]
    # Blocks may be apart in memory: to flatten the cache would copy all of it
    where = (planes // num_kv_heads, planes % num_kv_heads)
    return dequantize(values[where], None if scales is None else scales[where])


def _up_to_bfloat16(scales: Tensor) -> Tensor:
    """Finite float32 >= 0, rounded up to what bfloat16 can hold, and to a normal number."""
    bits = (scales.view(torch.int32) + 0xFFFF) & -0x10000
    return bits.view(torch.float32).clamp(min=torch.finfo(torch.float32).tiny)
