"""Quantised layers of a Hugging Face directory as `QuantizedWeight`s: exact, nothing is rounded.

    format           tensors of a layer, numbers packed from the low bits of an int32 upwards
    gptq             qweight [in / n, out], qzeros [groups, out / n], scales [groups, out],
                     g_idx [in]
    awq              qweight [in, out / n], qzeros [groups, out / n], scales [groups, out]
                     whose eight numbers are those of columns 0 2 4 6 1 3 5 7
    pack-quantized   weight_packed [out, in / n], weight_scale [out, groups], weight_shape,
                     weight_zero_point [out / n, groups], of numbers to which 2^(bits - 1) was added
    int-quantized    weight int8 [out, in], weight_scale [out, groups], weight_zero_point

n numbers fill an int32. GPTQ and AWQ: w = scale * (q - zero), in GPTQ's first format with one less
stored than the zero point is. Sources: AutoGPTQ's and GPTQModel's qlinear modules, AutoAWQ's GEMM
module, compressed-tensors' pack_quantized and naive_quantized compressors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from tandem_kernels import QuantizedWeight
from torch import Tensor

from core.errors import ConfigError
from text.stored_quantization import StoredFormat, StoredQuantization

Parts = Mapping[str, Tensor]
"""A layer's tensors by the last part of their names."""

# Number k of an AWQ word belongs to this of its eight columns.
_AWQ_COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)

FORMAT_PARTS: dict[StoredFormat, tuple[frozenset[str], frozenset[str]]] = {
    "gptq": (frozenset({"qweight", "qzeros", "scales"}), frozenset({"g_idx"})),
    "awq": (frozenset({"qweight", "qzeros", "scales"}), frozenset()),
    "pack-quantized": (
        frozenset({"weight_packed", "weight_scale", "weight_shape"}),
        frozenset({"weight_zero_point", "weight_g_idx"}),
    ),
    "int-quantized": (
        frozenset({"weight", "weight_scale"}),
        frozenset({"weight_zero_point", "input_scale", "input_zero_point"}),
    ),
}
"""Tensors that a quantised layer must have, and those that it may have beside them."""


def logical_shape(
    stored: StoredQuantization, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[int, int]:
    """[out, in] of a layer, from the shapes of its parts."""
    per_word = 32 // stored.bits
    if stored.format == "gptq":
        words, num_rows = shapes["qweight"]
        return num_rows, words * per_word
    if stored.format == "awq":
        num_columns, words = shapes["qweight"]
        return words * per_word, num_columns
    if stored.format == "pack-quantized":
        num_rows, words = shapes["weight_packed"]
        return num_rows, words * per_word
    num_rows, num_columns = shapes["weight"]
    return num_rows, num_columns


def unpack(name: str, stored: StoredQuantization, parts: Parts) -> QuantizedWeight:
    """A whole layer in groups of any size, as if column i belonged to group i // group_size.

    Raises ConfigError that names the layer whose tensors' shapes don't fit together.
    """
    weight = _UNPACKERS[stored.format](stored, parts)
    num_rows, num_columns = weight.values.shape
    num_groups = -(-num_columns // weight.group_size)
    for what, groups in (("scales", weight.scales), ("zero points", weight.offsets)):
        if groups is not None and groups.shape != (num_rows, num_groups):
            raise ConfigError(
                f"{name}: {what} {list(groups.shape)} don't fit a weight {[num_rows, num_columns]} "
                f"in groups of {weight.group_size} columns"
            )
    return weight


def group_index(stored: StoredQuantization, parts: Parts) -> Tensor | None:
    """Which group each column belongs to, int64 [in], where that isn't column // group_size.

    Activation order (`desc_act`, `actorder`) sorts columns by importance before they are grouped.
    """
    index = parts.get("g_idx", parts.get("weight_g_idx"))
    if index is None or stored.group_size is None:
        return None
    in_order = torch.arange(len(index)) // stored.group_size
    return None if torch.equal(index.long(), in_order) else index.long()


def _gptq(stored: StoredQuantization, parts: Parts) -> QuantizedWeight:
    numbers = _unpacked(parts["qweight"].t(), stored.bits)  # [out, in]
    zeros = _unpacked(parts["qzeros"], stored.bits).t().float()  # [out, groups]
    return _weight(stored, numbers, parts["scales"].t(), zeros + stored.zero_point_shift)


def _awq(stored: StoredQuantization, parts: Parts) -> QuantizedWeight:
    numbers = _in_order(_unpacked(parts["qweight"], 4)).t()  # [out, in]
    zeros = _in_order(_unpacked(parts["qzeros"], 4)).t().float()  # [out, groups]
    return _weight(stored, numbers, parts["scales"].t(), zeros)


def _pack_quantized(stored: StoredQuantization, parts: Parts) -> QuantizedWeight:
    num_rows, num_columns = (int(size) for size in parts["weight_shape"])
    numbers = _unpacked(parts["weight_packed"], stored.bits)[:num_rows, :num_columns]
    middle = float(1 << (stored.bits - 1))
    zeros = parts.get("weight_zero_point")
    if zeros is None:
        zero_points = torch.full_like(_per_row(parts, num_rows), middle)
    elif zeros.dtype == torch.int32:
        zero_points = _unpacked(zeros.t(), stored.bits).t()[:num_rows].float()
    else:
        zero_points = zeros.float() + middle
    return _weight(stored, numbers, _per_row(parts, num_rows), zero_points)


def _int_quantized(stored: StoredQuantization, parts: Parts) -> QuantizedWeight:
    values = parts["weight"]
    scales = _per_row(parts, len(values))
    zeros = parts.get("weight_zero_point")
    offsets = None
    if zeros is not None and bool(zeros.any()):
        offsets = -zeros.float().reshape(-1, scales.shape[1]).expand_as(scales) * scales
    scheme: Literal["int8", "w8a8"] = "w8a8" if stored.rounds_activations else "int8"
    return QuantizedWeight(scheme, values, scales, offsets, stored.group_size or values.shape[1])


def _per_row(parts: Parts, num_rows: int) -> Tensor:
    """Scales float32 [out, groups]; one scale for the whole tensor is repeated."""
    scales = parts["weight_scale"].float()
    scales = scales.reshape(-1, 1) if scales.dim() < 2 else scales
    return scales.expand(num_rows, -1).contiguous() if len(scales) == 1 else scales


def _weight(
    stored: StoredQuantization, numbers: Tensor, scales: Tensor, zeros: Tensor
) -> QuantizedWeight:
    """From numbers of 0 and more and their zero points: w = scale * (q - zero)."""
    scales = scales.float().contiguous()
    if scales.shape != zeros.shape:
        raise ConfigError(f"scales {list(scales.shape)}, but zero points {list(zeros.shape)}")
    group_size = stored.group_size or numbers.shape[1]
    if stored.bits == 4:
        return QuantizedWeight("int4", numbers.contiguous(), scales, -zeros * scales, group_size)
    values = (numbers.contiguous().short() - 128).to(torch.int8)
    offsets = (128 - zeros) * scales if bool((zeros != 128).any()) else None
    return QuantizedWeight("int8", values, scales, offsets, group_size)


def _unpacked(words: Tensor, bits: int) -> Tensor:
    """int32 [r, c] -> uint8 [r, c * 32 / bits], each word's numbers side by side, lowest first."""
    numbers = words.contiguous().view(torch.uint8)  # little endian: [r, c * 4]
    if bits == 8:
        return numbers
    return torch.stack((numbers & 15, numbers >> 4), dim=-1).view(len(words), -1)


def _in_order(numbers: Tensor) -> Tensor:
    """AWQ's numbers [r, out] to where they belong."""
    words = numbers.view(len(numbers), -1, len(_AWQ_COLUMNS))
    ordered = torch.empty_like(words)
    ordered[:, :, list(_AWQ_COLUMNS)] = words
    return ordered.view(numbers.shape)


_UNPACKERS: dict[StoredFormat, Callable[[StoredQuantization, Parts], QuantizedWeight]] = {
    "gptq": _gptq,
    "awq": _awq,
    "pack-quantized": _pack_quantized,
    "int-quantized": _int_quantized,
}
