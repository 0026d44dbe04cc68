"""Chooses the factors that move difficulty between activations and the weights that read them.

    x W^T = (x / s) (W s)^T        s [channels], one factor for each input channel of W

Rounding W s instead of W spends precision where activations are large (AWQ: Lin et al. 2023, for
weights that are rounded alone), and x / s has fewer outliers to stretch the grid of a token's
activations (SmoothQuant: Xiao et al. 2022, where these are rounded too):

    AWQ           s = mean|x|^alpha
    SmoothQuant   s = max|x|^alpha / max|W|^(1 - alpha)

alpha is the one with the least squared error of the outputs on samples of x. Factors of 1 are among
those tried, so no layer comes out worse on the samples than it would without.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tandem_kernels.reference_linear import dequantized
from torch import Tensor

from model.quantization.recipe import Recipe
from model.quantization.rounding import INT8_MAX

_ALPHAS = tuple(i / 10 for i in range(1, 10))
# Channels that hardly ever carry anything would get factors that no float type holds well.
_LARGEST_FACTOR = 64.0


@dataclass(frozen=True, eq=False, slots=True)
class Inputs:
    """What reached one linear layer while it was watched."""

    samples: Tensor
    """float32 [n, in]: some tokens' inputs."""
    mean: Tensor
    """float32 [in]: mean of |x| over all tokens."""
    largest: Tensor
    """float32 [in]: maximum of |x| over all tokens."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What was found for one layer: squared errors are relative to the outputs' squares."""

    alpha: float
    """0: factors of 1."""
    error: float
    plain_error: float
    """With factors of 1."""


def choose_factors(
    weight: Tensor, inputs: Inputs, recipe: Recipe, channels: Tensor | None = None
) -> tuple[Tensor, Choice]:
    """Factors [channels] for a weight float32 [out, in].

    `channels` int64 [in] names the channel of each column where several columns must share one, as
    query heads share a value head; None: every column is a channel of its own.
    """
    columns = torch.arange(weight.shape[1]) if channels is None else channels
    outputs = F.linear(inputs.samples, weight)
    power = float(outputs.square().sum()) or 1.0
    plain = _error(weight, inputs.samples, outputs, recipe) / power
    best = torch.ones(int(columns.max()) + 1), Choice(0.0, plain, plain)
    statistics = _Statistics(
        mean=_by_channel(inputs.mean, columns),
        largest=_by_channel(inputs.largest, columns),
        weight=_by_channel(weight.abs().amax(0), columns),
    )
    for alpha in _ALPHAS:
        factors = statistics.factors(alpha, smooth=recipe.scheme == "w8a8")
        s = factors[columns]
        error = _error(weight * s, inputs.samples / s, outputs, recipe) / power
        if error < best[1].error:
            best = factors, Choice(alpha, error, plain)
    return best


@dataclass(frozen=True, eq=False, slots=True)
class _Statistics:
    """float32 [channels] each, positive."""

    mean: Tensor
    largest: Tensor
    weight: Tensor

    def factors(self, alpha: float, *, smooth: bool) -> Tensor:
        if smooth:
            factors = self.largest**alpha / self.weight ** (1 - alpha)
        else:
            factors = self.mean**alpha
        centre = (factors.amax() * factors.amin()).sqrt()
        return (factors / centre).clamp(1 / _LARGEST_FACTOR, _LARGEST_FACTOR)


def _by_channel(values: Tensor, columns: Tensor) -> Tensor:
    """The largest of each channel's columns, above 0."""
    largest = torch.zeros(int(columns.max()) + 1).scatter_reduce(0, columns, values, "amax")
    return largest.clamp_min(max(float(largest.max()), 1e-30) * 1e-4)


def _error(weight: Tensor, x: Tensor, outputs: Tensor, recipe: Recipe) -> float:
    rounded = recipe.round(weight)
    if rounded.scheme == "w8a8":
        x = _rounded_activations(x)
    return float((F.linear(x, dequantized(rounded)) - outputs).square().sum())


def _rounded_activations(x: Tensor) -> Tensor:
    scales = x.abs().amax(dim=1, keepdim=True).clamp_min(1e-30) / INT8_MAX
    return (x / scales).round() * scales
