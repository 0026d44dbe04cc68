"""Linear layers, and the weights that they are packed from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from torch import Tensor


class PackedLinear(Protocol):
    """y = x W^T + b with weights in whatever layout is fastest. [T, in] -> [T, out]."""

    def __call__(self, x: Tensor, /) -> Tensor: ...

    def weight_rows(self, indices: Tensor, /) -> Tensor:
        """Rows of W exactly as they were: a head that is its model's embedding too. int64 [T]
        -> [T, in]. Raises IndexError beyond W."""
        ...


@dataclass(frozen=True, eq=False, slots=True)
class QuantizedWeight:
    """A weight [out, in] of whole numbers: w[o, i] = values[o, i] * scales[o, g] + offsets[o, g],
    with g = i // group_size. What every quantised checkpoint is brought to before it is packed."""

    scheme: Literal["int8", "int4", "w8a8"]
    """int8, int4: activations stay as they are, or nearly: CPU kernels round them to 16 bits with a
    scale for each token (int8), or to 8 bits with a scale for each token and group (int4). w8a8:
    activations are rounded to int8 too, with a scale for each token and 64 columns; the weight has
    one group and no offsets."""
    values: Tensor
    """int8 [out, in]; of int4, uint8 [out, in] with one number of 0..15 a byte."""
    scales: Tensor
    """float32 [out, ceil(in / group_size)]."""
    offsets: Tensor | None
    """float32, shaped like scales; None: all 0."""
    group_size: int
    """Columns that share a scale: 32, 64, 128, or all of them (per channel)."""
