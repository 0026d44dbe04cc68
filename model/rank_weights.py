"""One rank's weights on their way from the checkpoint to the device."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from model.checkpoint import Checkpoint
from model.weight_parts import WeightPart
from text.progress import Progress


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
    ) -> None:
        self._checkpoint = checkpoint
        self._dtype = dtype
        self._device = device
        self._progress = progress
        self._total_bytes = total_bytes
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
            rows = self._checkpoint.read(f"{part.module}.{kind}", part.rows, columns)
            stacked[start : start + len(part.rows)] = rows
            start += len(part.rows)
        self._report(stacked)
        return stacked

    def _report(self, tensor: Tensor) -> None:
        self._done_bytes += tensor.numel() * tensor.element_size()
        self._progress("weights", self._done_bytes, self._total_bytes)
