"""The one place where linear layers and norms are made from a checkpoint's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from tandem_kernels import Kernels, Norm, PackedLinear
from torch import Tensor

from model.rank_weights import RankWeights
from model.weight_parts import WeightPart
from text.families.family import Family


class LayerWeights(Protocol):
    """Makes every layer that a decoder consists of."""

    def linear(
        self,
        parts: Sequence[WeightPart],
        *,
        columns: range | None = None,
        bias: Sequence[WeightPart] = (),
        out_dtype: torch.dtype | None = None,
    ) -> PackedLinear:
        """The rows of `parts`, stacked, of which only `columns` are wanted (None: all).

        `bias`: where the bias of each of these rows lies; none where it is empty.
        """
        ...

    def norm(self, module: str) -> Norm:
        """A norm, ready to use."""
        ...

    def rows(self, part: WeightPart) -> Tensor:
        """Rows of an embedding that isn't its model's head as well."""
        ...


class FloatWeights:
    """`LayerWeights` that stay floats."""

    def __init__(self, weights: RankWeights, kernels: Kernels, family: Family) -> None:
        self._weights = weights
        self._kernels = kernels
        self._family = family

    def linear(
        self,
        parts: Sequence[WeightPart],
        *,
        columns: range | None = None,
        bias: Sequence[WeightPart] = (),
        out_dtype: torch.dtype | None = None,
    ) -> PackedLinear:
        weight = self._weights.stack(parts, "weight", columns)
        offsets = self._weights.stack(bias, "bias") if bias else None
        return self._kernels.pack_linear(weight, offsets, out_dtype=out_dtype)

    def norm(self, module: str) -> Norm:
        plus = 1.0 if self._family.norm_plus_one else 0.0
        weight = self._weights.vector(f"{module}.weight", plus=plus)
        has_bias = self._family.layer_norm
        return Norm(weight, self._weights.vector(f"{module}.bias") if has_bias else None)

    def rows(self, part: WeightPart) -> Tensor:
        return self._weights.stack([part], "weight")
