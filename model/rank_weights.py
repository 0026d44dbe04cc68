"""One rank's weights on their way from the checkpoint to the device."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from model.checkpoint import Checkpoint
from model.weight_parts import WeightPart
from text.progress import Progress

_PIECE_ELEMENTS = 2**18
"""What is read at a time stays in a core's cache, and needs no memory of its own for long: memory
that was never touched before is the slowest there is, on virtual machines above all."""


class RankWeights:
    """Reads parts of tensors in the type and on the device where they will be used."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        dtype: torch.dtype,
        device: torch.device,
        progress: Progress,
        total_bytes: int,
        head_dim: int = 1,
    ) -> None:
        """Parts are read in pieces of whole heads: some formats interleave the rows of a head."""
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._total_bytes = total_bytes
        self._head_dim = head_dim
        self._done_bytes = 0

    def vector(self, name: str, *, plus: float = 0.0) -> Tensor:
        """A whole tensor of one axis, with `plus` added before it is rounded."""
        values = self._checkpoint.read(name)
        stored = values.float() + plus if plus else values
        vector = torch.empty(stored.shape, dtype=self._dtype, device=self._device).copy_(stored)
        self._report(vector)
        return vector

    def stack(
        self,
        parts: Sequence[WeightPart],
        kind: str,
        columns: range | None = None,
        *,
        exact: bool = False,
    ) -> Tensor:
        """Rows of several modules' tensors `kind` (weight, bias) in one, in the order given.

        `exact`: in float32 on the CPU, for those who round them in another way.
        """
        num_rows = sum(len(part.rows) for part in parts)
        shape = self._checkpoint.shapes[f"{parts[0].module}.{kind}"][1:]
        width = shape if columns is None else (len(columns),)
        stacked = torch.empty(
            (num_rows, *width),
            dtype=torch.float32 if exact else self._dtype,
            device="cpu" if exact else self._device,
        )
        start = 0
        for part in parts:
            for rows in _pieces(part.rows, math.prod(width), self._head_dim):
                values = self._checkpoint.read(f"{part.module}.{kind}", rows, columns)
                stacked[start : start + len(rows)] = values
                start += len(rows)
        self._report(stacked)
        return stacked

    def _report(self, tensor: Tensor) -> None:
        self._done_bytes += tensor.numel() * tensor.element_size()
        self._progress("weights", self._done_bytes, self._total_bytes)


def _pieces(rows: range, width: int, multiple: int) -> Iterator[range]:
    """`rows` in pieces of a multiple of so many rows, and of about `_PIECE_ELEMENTS` elements."""
    num_rows = max(1, _PIECE_ELEMENTS // (width * multiple)) * multiple
    for start in range(rows.start, rows.stop, num_rows):
        yield range(start, min(start + num_rows, rows.stop))
