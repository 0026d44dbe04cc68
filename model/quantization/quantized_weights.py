"""`LayerWeights` of whole numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from tandem_kernels import Kernels, Norm, PackedLinear, QuantizedWeight
from torch import Tensor

from model.checkpoint import Checkpoint
from model.layer_weights import FloatWeights
from model.quantization.calibrated_checkpoint import importance_by_module
from model.quantization.recipe import Recipe
from model.quantization.whole_numbers import stacked
from model.rank_weights import RankWeights
from model.weight_parts import WeightPart
from text.families.family import Family


class QuantizedWeights:
    """Linear layers as a recipe wants them; norms and separate embeddings stay floats."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        weights: RankWeights,
        kernels: Kernels,
        family: Family,
        recipe: Recipe,
        device: torch.device,
    ) -> None:
        self._checkpoint = checkpoint
        self._weights = weights
        self._floats = FloatWeights(weights, kernels, family)
        self._kernels = kernels
        self._family = family
        self._recipe = recipe
        self._device = device
        calibration = recipe.calibration
        self._importance = {} if calibration is None else importance_by_module(calibration, family)

    def linear(
        self,
        parts: Sequence[WeightPart],
        *,
        columns: range | None = None,
        bias: Sequence[WeightPart] = (),
        out_dtype: torch.dtype | None = None,
    ) -> PackedLinear:
        weight = (
            self._rounded(parts, columns) if self._recipe.rounds else self._kept(parts, columns)
        )
        if weight is None:
            return self._floats.linear(parts, columns=columns, bias=bias, out_dtype=out_dtype)
        offsets = self._weights.stack(bias, "bias") if bias else None
        return self._kernels.pack_linear(self._placed(weight), offsets, out_dtype=out_dtype)

    def norm(self, module: str) -> Norm:
        return self._floats.norm(module)

    def rows(self, part: WeightPart) -> Tensor:
        return self._floats.rows(part)

    def _rounded(self, parts: Sequence[WeightPart], columns: range | None) -> QuantizedWeight:
        # From float32, since rounding twice would cost precision
        weight = self._weights.stack(parts, "weight", columns, exact=True)
        module = parts[0].module
        if module in (self._family.embedding, self._family.head):
            return self._recipe.round_head(weight)
        importance = self._importance.get(module)
        if importance is not None and columns is not None:
            importance = importance[columns.start : columns.stop]
        return self._recipe.round(weight, importance)

    def _kept(self, parts: Sequence[WeightPart], columns: range | None) -> QuantizedWeight | None:
        """None where the checkpoint has some of the parts as floats, or in different groups."""
        weights = []
        for part in parts:
            name = f"{part.module}.weight"
            weight = self._checkpoint.read_quantized(name, part.rows, columns)
            if weight is None:
                return None
            weights.append(weight)
        return stacked(weights)

    def _placed(self, weight: QuantizedWeight) -> QuantizedWeight:
        offsets = weight.offsets
        return dataclasses.replace(
            weight,
            values=weight.values.to(self._device),
            scales=weight.scales.to(self._device),
            offsets=None if offsets is None else offsets.to(self._device),
        )
