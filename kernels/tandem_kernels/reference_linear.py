"""Plain torch twins of linear layers, on floats and on whole numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tandem_kernels.packed_linear import QuantizedWeight

_INT8_MAX = 127
_PIECE_COLUMNS = 64


@dataclass(frozen=True, eq=False, slots=True)
class ReferenceLinear:
    """`PackedLinear` that keeps its weight as it is."""

    weight: Tensor
    bias: Tensor | None
    out_dtype: torch.dtype

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias).to(self.out_dtype)

    def weight_rows(self, indices: Tensor) -> Tensor:
        return F.embedding(indices, self.weight)


class ReferenceQuantizedLinear:
    """`PackedLinear` of whole numbers. Computes in float32 what they stand for.

    w8a8: each piece of 64 columns of a row of x is rounded to x_scale * q with q in -127..127; its
    sums of products are exact, and are multiplied with both scales afterwards.
    """

    def __init__(
        self,
        weight: QuantizedWeight,
        bias: Tensor | None,
        out_dtype: torch.dtype,
        dtype: torch.dtype,
    ) -> None:
        """`dtype` is that of rows looked up."""
        self._rounds_activations = weight.scheme == "w8a8"
        self._row_scales = weight.scales.squeeze(1) if self._rounds_activations else None
        self._weight = weight.values.float() if self._rounds_activations else dequantized(weight)
        self._bias = None if bias is None else bias.float()
        self._out_dtype = out_dtype
        self._dtype = dtype

    def __call__(self, x: Tensor) -> Tensor:
        y = self._rounded(x.float()) if self._rounds_activations else self._product(x.float())
        return (y if self._bias is None else y + self._bias).to(self._out_dtype)

    def weight_rows(self, indices: Tensor) -> Tensor:
        rows = F.embedding(indices, self._weight)
        if self._row_scales is not None:
            rows = rows * self._row_scales[indices].unsqueeze(1)
        return rows.to(self._dtype)

    def _product(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight)

    def _rounded(self, x: Tensor) -> Tensor:
        assert self._row_scales is not None
        total = x.new_zeros(len(x), len(self._weight))
        for start in range(0, x.shape[1], _PIECE_COLUMNS):
            columns = slice(start, start + _PIECE_COLUMNS)
            piece, weight = x[:, columns], self._weight[:, columns]
            largest = piece.abs().amax(dim=1, keepdim=True)  # [T, 1]
            scales = torch.where(largest > 0, largest / _INT8_MAX, 1.0)
            per_unit = torch.where(largest > 0, largest.new_tensor(_INT8_MAX) / largest, 0.0)
            total += F.linear((piece * per_unit).round(), weight) * scales
        return total * self._row_scales


def dequantized(weight: QuantizedWeight, group_index: Tensor | None = None) -> Tensor:
    """float32 [out, in]: scale * value + offset, each operation rounded once.

    `group_index` int64 [in] names each column's group where that isn't column // group_size.
    """
    if group_index is None:
        columns = torch.arange(weight.values.shape[1], device=weight.values.device)
        group_index = columns // weight.group_size
    floats = weight.values * weight.scales[:, group_index]  # [out, in]
    return floats if weight.offsets is None else floats.add_(weight.offsets[:, group_index])
