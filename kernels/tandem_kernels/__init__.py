"""Tensor kernels behind one protocol: tensors in, tensors out, nothing of ours above."""

from tandem_kernels.interface import (
    AttentionMeta,
    Kernels,
    LayerCache,
    PackedLinear,
    QuantizedWeight,
)
from tandem_kernels.select import select

__all__ = ["AttentionMeta", "Kernels", "LayerCache", "PackedLinear", "QuantizedWeight", "select"]
