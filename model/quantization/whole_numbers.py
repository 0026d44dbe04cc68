"""What can be done with a `QuantizedWeight` before it is packed: parts, stacks, other groups."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from tandem_kernels import QuantizedWeight
from torch import Tensor

# Of the groups that kernels take, beside whole rows.
GROUP_SIZES = (32, 64, 128)


def part(
    weight: QuantizedWeight, rows: range | None, columns: range | None
) -> QuantizedWeight | None:
    """The given rows and columns; None where columns begin or end within a group."""
    first = slice(None) if rows is None else slice(rows.start, rows.stop)
    num_columns = weight.values.shape[1]
    if columns is None or columns == range(num_columns):
        taken, groups = slice(None), slice(None)
    else:
        size = weight.group_size
        if size < num_columns and (
            columns.start % size or (columns.stop % size and columns.stop != num_columns)
        ):
            return None
        taken = slice(columns.start, columns.stop)
        groups = slice(columns.start // size, -(-columns.stop // size))
    offsets = weight.offsets
    return dataclasses.replace(
        weight,
        values=weight.values[first, taken],
        scales=weight.scales[first, groups],
        offsets=None if offsets is None else offsets[first, groups],
        group_size=min(weight.group_size, len(columns) if columns else num_columns),
    )


def rows_taken(weight: QuantizedWeight, indices: Tensor) -> QuantizedWeight:
    """Rows in the order of `indices`, int64 [n]."""
    offsets = weight.offsets
    return dataclasses.replace(
        weight,
        values=weight.values[indices],
        scales=weight.scales[indices],
        offsets=None if offsets is None else offsets[indices],
    )


def stacked(weights: Sequence[QuantizedWeight]) -> QuantizedWeight | None:
    """Rows of several weights in one; None where their groups or schemes differ too much.

    Numbers of 4 bits beside numbers of 8 are kept in 8, which changes none of them.
    """
    first = weights[0]
    if len({(w.group_size, w.scheme == "w8a8") for w in weights}) > 1:
        return None
    if len({w.scheme for w in weights}) > 1:
        weights = [_as_int8(w) for w in weights]
        first = weights[0]
    offsets = None
    if any(w.offsets is not None for w in weights):
        offsets = torch.cat(
            [torch.zeros_like(w.scales) if w.offsets is None else w.offsets for w in weights]
        )
    return dataclasses.replace(
        first,
        values=torch.cat([w.values for w in weights]),
        scales=torch.cat([w.scales for w in weights]),
        offsets=offsets,
    )


def with_group_size(weight: QuantizedWeight) -> QuantizedWeight | None:
    """The same weight in groups that kernels take: larger ones are cut up. None: no way."""
    size, num_columns = weight.group_size, weight.values.shape[1]
    if size in GROUP_SIZES or size >= num_columns:
        return dataclasses.replace(weight, group_size=min(size, num_columns))
    fitting = next((s for s in reversed(GROUP_SIZES) if size % s == 0), None)
    if fitting is None:
        return None
    num_groups = -(-num_columns // fitting)

    def cut(groups: Tensor) -> Tensor:
        return groups.repeat_interleave(size // fitting, dim=1)[:, :num_groups].contiguous()

    offsets = weight.offsets
    return dataclasses.replace(
        weight,
        scales=cut(weight.scales),
        offsets=None if offsets is None else cut(offsets),
        group_size=fitting,
    )


def _as_int8(weight: QuantizedWeight) -> QuantizedWeight:
    return dataclasses.replace(weight, scheme="int8", values=weight.values.to(torch.int8))
