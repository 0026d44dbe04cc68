"""One rank's weights on their way from the checkpoint to the device."""

from __future__ import annotations

import torch
from torch import Tensor

from model.checkpoint import Checkpoint
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

    def read(self, name: str, rows: range | None = None, columns: range | None = None) -> Tensor:
        """A tensor, or a part of it."""
        part = self._checkpoint.read(name, rows, columns)
        tensor = torch.empty(part.shape, dtype=self._dtype, device=self._device).copy_(part)
        self._report(tensor)
        return tensor

    def stack(self, *parts: tuple[str, range]) -> Tensor:
        """Rows of several tensors in one, in the order given."""
        num_rows = sum(len(rows) for _, rows in parts)
        columns = self._checkpoint.shapes[parts[0][0]][1:]
        stacked = torch.empty((num_rows, *columns), dtype=self._dtype, device=self._device)
        start = 0
        for name, rows in parts:
            stacked[start : start + len(rows)] = self._checkpoint.read(name, rows)
            start += len(rows)
        self._report(stacked)
        return stacked

    def _report(self, tensor: Tensor) -> None:
        self._done_bytes += tensor.numel() * tensor.element_size()
        self._progress("weights", self._done_bytes, self._total_bytes)
