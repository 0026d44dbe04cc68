"""Memory for packed weights, in huge pages where the system has them.

A decode step reads all weights once, far more than the TLB covers in pages of 4 KiB: with pages of
2 MiB the same kernels were measured to read about twice as fast.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tandem_kernels.host_memory import lazy_zeros

CHUNK_BYTES = 64 * 2**20
_ALIGNMENT = 64


class WeightArena:
    """Hands out pieces of a few large chunks; a chunk lives as long as any of its pieces."""

    def __init__(self) -> None:
        self._chunk = torch.empty(0, dtype=torch.uint8)
        self._used_bytes = 0

    def allocate(self, size_bytes: int) -> Tensor:
        """Zeroed memory, uint8 [size_bytes], aligned for vectors."""
        if self._used_bytes + size_bytes > len(self._chunk):
            self._chunk = lazy_zeros(max(size_bytes, CHUNK_BYTES))
            self._used_bytes = 0
        piece = self._chunk[self._used_bytes : self._used_bytes + size_bytes]
        self._used_bytes += -(-size_bytes // _ALIGNMENT) * _ALIGNMENT
        return piece
