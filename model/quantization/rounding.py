"""Rounds floating weights to int8 per row, and to int4 in groups of columns.

    int8   w = scale * q,            q in -127..127, one scale a row
    int4   w = scale * q + offset,   q in 0..15, a scale and an offset for each group

An int8 scale is the row's largest weight over 127. For int4 the grid from a group's least to its
largest weight is only the start: outliers make it coarse. So several grids are tried, narrower and
wider, each with the scale and offset that fit its rounded values best (weighted least squares, in
closed form), and the one of least squared error is kept: the search of ggml's k-quants
(`make_qkx2_quants` in ggml-quants.c), here over all groups of a slab at once. Scales and offsets
are numbers of float16, so that kernels can store them in two bytes, and the values are those
nearest on that grid. Weights that lie on such a grid already, as those of a Q4_1 file do, come out
as they went in.
"""

from __future__ import annotations

from typing import Literal

import torch
from tandem_kernels import QuantizedWeight
from torch import Tensor

INT8_MAX = 127
INT4_MAX = 15

# Steps that the range between a group's extremes is divided into, beside 15 exactly; of finer grids
# the outermost weights are clipped. On normal weights these three take 5 % off the error of groups
# of 32, six would take 6 %, and each costs as much time as the first.
_TRIED_STEPS = (14.4, 15.6, 16.4)
# A squared error below this share of a group's variance is float32's own rounding.
_EXACT = 1e-6
# Below it, steps per unit would leave float32.
_SMALLEST_SPAN = 1e-30
# float16's smallest number.
_SMALLEST_SCALE = 2.0**-24
# Of a slab of rows, so that its temporaries stay in the second-level cache.
_SLAB_ELEMENTS = 1 << 17


def round_int8(weight: Tensor, scheme: Literal["int8", "w8a8"]) -> QuantizedWeight:
    """Per row, symmetric. Any float [out, in] -> values int8 [out, in], scales [out, 1]."""
    largest = weight.abs().amax(dim=1, keepdim=True).float()  # [out, 1]
    scales = torch.where(largest > 0, largest / INT8_MAX, 1.0)
    values = torch.empty(weight.shape, dtype=torch.int8)
    for rows in _slabs(weight):
        values[rows] = (weight[rows].float() / scales[rows]).round_()
    return QuantizedWeight(scheme, values, scales, None, weight.shape[1])


def round_int4(
    weight: Tensor, group_size: int, importance: Tensor | None = None
) -> QuantizedWeight:
    """Per group of columns, with offset. Any float [out, in] -> values uint8 [out, in] of 0..15.

    `importance` float32 [in], positive: how much a squared error in each column weighs. The last
    group is smaller where `group_size` doesn't divide the columns.
    """
    num_rows, num_columns = weight.shape
    num_groups = -(-num_columns // group_size)
    values = torch.empty((num_rows, num_columns), dtype=torch.uint8)
    scales, offsets = torch.empty((2, num_rows, num_groups))
    whole = num_columns // group_size * group_size
    parts = [slice(0, whole)] if whole else []
    parts += [slice(whole, num_columns)] if whole < num_columns else []
    for columns in parts:
        size = min(group_size, columns.stop - columns.start)
        groups = slice(columns.start // group_size, -(-columns.stop // group_size))
        weighting = None if importance is None else importance[columns].view(-1, size)
        for rows in _slabs(weight):
            slab = weight[rows, columns].float()
            q, scales[rows, groups], offsets[rows, groups] = _round_groups(slab, size, weighting)
            values[rows, columns] = q
    return QuantizedWeight("int4", values, scales, offsets, group_size)


def _slabs(weight: Tensor) -> list[slice]:
    step = max(1, _SLAB_ELEMENTS // weight.shape[1])
    return [slice(start, start + step) for start in range(0, len(weight), step)]


def _round_groups(
    slab: Tensor, size: int, weighting: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """[rows, groups * size] -> values of the same shape, scales and offsets [rows, groups]."""
    num_rows = len(slab)
    # [size, rows * groups]: sums over a group then run along whole vectors
    weights = slab.reshape(-1, size).t().contiguous()
    groups = _Groups(weights, None if weighting is None else weighting.repeat(num_rows, 1).t())
    scale, offset = groups.best_grid()
    q = _nearest(weights, offset, 1 / scale)
    return q.t().reshape(slab.shape), scale.view(num_rows, -1), offset.view(num_rows, -1)


class _Groups:
    """n groups of weights, columns of w [size, n]; means are weighted by `weighting` [size, n]."""

    def __init__(self, w: Tensor, weighting: Tensor | None) -> None:
        self._weighting = None if weighting is None else weighting / weighting.mean(0)
        self._low = w.amin(0)
        span = w.amax(0) - self._low
        # A group of one weight over and over is all offset, on any grid
        self._span = torch.where(span > _SMALLEST_SPAN, span, 1.0)
        self._mean = self._weighted(w).mean(0)
        self._centred = w - self._mean
        self._variance = self._weighted(self._centred.square()).mean(0)
        self._w = w

    def best_grid(self) -> tuple[Tensor, Tensor]:
        """Scales and offsets [n], of float16, of the least squared error of those tried."""
        scale, mean_q, error = self._fit(float(INT4_MAX))
        if not bool((error <= _EXACT * self._variance).all()):
            for steps in _TRIED_STEPS:
                other_scale, other_mean_q, other_error = self._fit(steps)
                better = other_error < error
                scale = torch.where(better, other_scale, scale)
                mean_q = torch.where(better, other_mean_q, mean_q)
                error = torch.minimum(error, other_error)
        scale = _of_float16(scale).clamp_min(_SMALLEST_SCALE)
        # Through both means still: what the scale's rounding turns, the offset makes up for
        return scale, _of_float16(self._mean - scale * mean_q)

    def _fit(self, steps: float) -> tuple[Tensor, Tensor, Tensor]:
        """The line that fits w best over its values q rounded on a grid.

        -> its slope cov(q, w) / var(q), the mean of q, which it passes at the mean of w, and its
        squared error.
        """
        q = _nearest(self._w, self._low, steps / self._span)
        weighted_q = self._weighted(q)
        mean_q = weighted_q.mean(0)
        var_q = (weighted_q * q).mean(0).addcmul_(mean_q, mean_q, value=-1)
        cov = weighted_q.mul_(self._centred).mean(0)
        # Groups of one weight over and over have no slope
        scale = torch.where(cov > 0, cov / var_q, self._span / steps)
        return scale, mean_q, self._variance - cov * scale

    def _weighted(self, x: Tensor) -> Tensor:
        return x if self._weighting is None else x * self._weighting


def _nearest(w: Tensor, offset: Tensor, steps_per_unit: Tensor) -> Tensor:
    return (w - offset).mul_(steps_per_unit).round_().clamp_(0, INT4_MAX)


def _of_float16(x: Tensor) -> Tensor:
    """The nearest numbers of float16; those beyond its range stay as they are."""
    rounded = x.half().float()
    return torch.where(rounded.isfinite(), rounded, x)
