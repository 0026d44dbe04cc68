"""GGUF's blocks of 32 kept as whole numbers: Q4_0, Q4_1 and Q8_0, exactly.

    Q4_0  | d f16 | 16 bytes: 32 x 4 bit |               w = d q - 8 d
    Q4_1  | d f16 | m f16 | 16 bytes: 32 x 4 bit |       w = d q + m
    Q8_0  | d f16 | 32 x int8 |                          w = d q

The low halves of the 16 bytes are elements 0-15, the high halves 16-31.
Format: ggml-common.h and ggml-quants.c of ggml.
"""

from __future__ import annotations

import torch
from tandem_kernels import QuantizedWeight
from torch import Tensor

BLOCK = 32
BLOCK_BYTES = {"Q4_0": 18, "Q4_1": 20, "Q8_0": 34}


def packed_blocks(ggml_type: str, data: Tensor) -> QuantizedWeight | None:
    """uint8 [rows, bytes of a row] -> a weight in groups of 32; None for all other types."""
    if ggml_type not in BLOCK_BYTES:
        return None
    blocks = data.view(len(data), -1, BLOCK_BYTES[ggml_type])  # [rows, groups, bytes]
    if ggml_type == "Q8_0":
        values = blocks[:, :, 2:].reshape(len(data), -1).view(torch.int8)
        return QuantizedWeight("int8", values, _halves(blocks, 0), None, BLOCK)
    scales = _halves(blocks, 0)
    if ggml_type == "Q4_0":
        return QuantizedWeight("int4", _nibbles(blocks[:, :, 2:]), scales, -8 * scales, BLOCK)
    return QuantizedWeight("int4", _nibbles(blocks[:, :, 4:]), scales, _halves(blocks, 1), BLOCK)


def _halves(blocks: Tensor, index: int) -> Tensor:
    """The float16 at this place of every block, as float32 [rows, groups]."""
    start = 2 * index
    return blocks[:, :, start : start + 2].contiguous().view(torch.float16).float().squeeze(-1)


def _nibbles(packed: Tensor) -> Tensor:
    """uint8 [rows, groups, 16] -> uint8 [rows, groups * 32]."""
    return torch.cat((packed & 15, packed >> 4), dim=-1).view(len(packed), -1)
