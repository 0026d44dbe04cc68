"""GGUF's block formats back to floats.

    Q4_0  | d f16 | 16 bytes: 32 x 4 bit |               x = d (q - 8)
    Q4_1  | d f16 | m f16 | 16 bytes: 32 x 4 bit |       x = d q + m
    Q8_0  | d f16 | 32 x int8 |                          x = d q

The low halves of the 16 bytes are elements 0-15, the high halves 16-31. These three are done here,
several times faster than by the gguf library, which serves all other formats.
Format: ggml-common.h and ggml-quants.c of ggml.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from core.errors import ConfigError

BLOCK = 32


def dequantize(ggml_type: str, data: Tensor, num_columns: int) -> Tensor:
    """uint8 [rows, bytes of a row] -> [rows, num_columns], float32 or the file's own float type.

    Raises ConfigError for a format that nobody here can read.
    """
    if ggml_type in _FLOATS:
        return data.view(_FLOATS[ggml_type])
    if ggml_type in _BLOCKS:
        block_bytes, unpack = _BLOCKS[ggml_type]
        return unpack(data.view(-1, block_bytes)).view(-1, num_columns)
    return _by_library(ggml_type, data).view(-1, num_columns)


def _q4_0(blocks: Tensor) -> Tensor:
    scale = blocks[:, :2].contiguous().view(torch.float16).float()  # [blocks, 1]
    return _nibbles(blocks[:, 2:]).sub_(8).mul_(scale)


def _q4_1(blocks: Tensor) -> Tensor:
    scale_min = blocks[:, :4].contiguous().view(torch.float16).float()  # [blocks, 2]
    return _nibbles(blocks[:, 4:]).mul_(scale_min[:, :1]).add_(scale_min[:, 1:])


def _q8_0(blocks: Tensor) -> Tensor:
    scale = blocks[:, :2].contiguous().view(torch.float16).float()  # [blocks, 1]
    return blocks[:, 2:].view(torch.int8).float().mul_(scale)


def _nibbles(packed: Tensor) -> Tensor:
    """uint8 [blocks, 16] -> float32 [blocks, 32]."""
    values = torch.empty((len(packed), BLOCK))
    values[:, : BLOCK // 2] = packed & 15
    values[:, BLOCK // 2 :] = packed >> 4
    return values


def _by_library(ggml_type: str, data: Tensor) -> Tensor:
    # Imported here: it takes longer than reading a small model, and most files don't need it
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize as library_dequantize

    try:
        values = library_dequantize(data.numpy(), GGMLQuantizationType[ggml_type])
    except (KeyError, NotImplementedError):
        raise ConfigError(f"GGUF tensors of type {ggml_type} are not supported") from None
    return torch.from_numpy(values)


_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_BLOCKS: dict[str, tuple[int, Callable[[Tensor], Tensor]]] = {
    "Q4_0": (18, _q4_0),
    "Q4_1": (20, _q4_1),
    "Q8_0": (34, _q8_0),
}
