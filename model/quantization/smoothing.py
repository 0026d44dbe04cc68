"""Chooses the factors that move difficulty between activations and the weights that read them.

    x W^T = (x / s) (W s)^T        s [channels], one factor for each input channel of W

Rounding W s instead of W spends precision where activations are large (AWQ: Lin et al. 2023, for
weights that are rounded alone), and x / s has fewer outliers to stretch the grid of a token's
activations (SmoothQuant: Xiao et al. 2022, where these are rounded too):

    AWQ           s = mean|x|^alpha
    SmoothQuant   s = max|x|^alpha / max|W|^(1 - alpha)

alpha is the one with the least squared error of the outputs on one half of the samples of x. It is
taken only where it clearly lowers the error on the other half too; else the layer keeps factors of
1. What little is won on a single layer's samples is lost on other texts as often as not.

Groups of int4 are fitted to their weights by least squares, in which columns weigh as much as
(mean|x|)^2, where that wins on the other half. llama.cpp's importance matrix is the mean of x^2,
which a few tokens with huge activations decide: with it, groups of 128 came out 5 % worse.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from tandem_kernels import QuantizedWeight
from tandem_kernels.reference_linear import ReferenceQuantizedLinear
from torch import Tensor

from model.quantization.recipe import Recipe

_ALPHAS = tuple(i / 10 for i in range(1, 10))
# Of the squared error on the half that alpha was not chosen on: what factors have to take off it.
_CLEAR_GAIN = 0.03
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
    """What was found for one layer. Squared errors are relative to the outputs' squares, on the
    samples that alpha was not chosen on."""

    alpha: float
    """0: factors of 1."""
    weighs: bool
    """Columns weigh as much as their inputs (`importance`) where the weight is rounded."""
    error: float
    plain_error: float
    """With factors of 1, and all columns alike."""


def importance(inputs: Inputs, factors: Tensor) -> Tensor:
    """How much an error in each column costs, its inputs divided by `factors`. float32 [in]."""
    squares = (inputs.mean / factors).square()
    return squares.clamp_min(max(float(squares.mean()), 1e-30) * 1e-4)


def choose_factors(
    weight: Tensor, inputs: Inputs, recipe: Recipe, channels: Tensor | None = None
) -> tuple[Tensor, Choice]:
    """Factors [channels] for a weight float32 [out, in].

    `channels` int64 [in] names the channel of each column where several columns must share one, as
    query heads share a value head; None: every column is a channel of its own.
    """
    columns = torch.arange(weight.shape[1]) if channels is None else channels
    statistics = _Statistics(
        mean=_by_channel(inputs.mean, columns),
        largest=_by_channel(inputs.largest, columns),
        weight=_by_channel(weight.abs().amax(0), columns),
    )
    smooth, weighs = recipe.scheme == "w8a8", recipe.scheme == "int4"
    tried = {alpha: statistics.factors(alpha, smooth=smooth) for alpha in _ALPHAS}
    ones = tried[0.0] = torch.ones(int(columns.max()) + 1)

    def error(x: Tensor, alpha: float, *, weighs: bool) -> float:
        factors = tried[alpha][columns]
        rounded = recipe.round(weight * factors, importance(inputs, factors) if weighs else None)
        return _error(weight, x, factors, rounded)

    half = -(-len(inputs.samples) // 2)
    chosen_on, held_out = inputs.samples[:half], inputs.samples[-half:]
    errors = {alpha: error(chosen_on, alpha, weighs=weighs) for alpha in sorted(tried)}
    alpha = min(errors, key=errors.__getitem__)  # the least of those that are equal
    plain = error(held_out, 0.0, weighs=False)
    found = error(held_out, alpha, weighs=weighs)
    if found < (1 - _CLEAR_GAIN) * plain:
        return tried[alpha], Choice(alpha, weighs, found, plain)
    return ones, Choice(0.0, False, plain, plain)


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


def _error(weight: Tensor, x: Tensor, factors: Tensor, rounded: QuantizedWeight) -> float:
    """Of the outputs for x, of which `rounded` sees x / factors: over the outputs' own squares."""
    outputs = F.linear(x, weight)
    layer = ReferenceQuantizedLinear(rounded, None, torch.float32, torch.float32)
    error = (layer(x / factors) - outputs).square().sum()
    return float(error) / (float(outputs.square().sum()) or 1.0)
