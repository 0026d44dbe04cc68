"""What this machine reads and multiplies at best, measured on the engine's own threads.

On CPUs by the loops of the kernels' instructions, as `tandem bench linears` does; elsewhere, and
without compiled kernels, by torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
from tandem_kernels.cpu.library import cpu_library
from tandem_kernels.cpu.linear_peaks import LinearPeaks

from core.clock import Clock
from core.roofline import Roofline

_READ_BYTES = 512 * 1024 * 1024
"""Far beyond any cache."""
_SIZE = 2048
"""Of the square matrices: large enough for the best rate, and 17 G operations."""
_REPEATS = 8


class Peaks:
    """Measures on one device. `kind` is what linear layers multiply: a dtype, or the weights'
    format (`int8`, `int4`, `w8a8`)."""

    def __init__(self, device: torch.device, kind: str, clock: Clock) -> None:
        self._device = device
        self._kind = kind
        self._clock = clock

    def measure(self) -> Roofline:
        """Takes about a second."""
        library = cpu_library() if self._device.type == "cpu" else None
        return self._of_torch() if library is None else self._of_kernels(library)

    def _of_kernels(self, library: ctypes.CDLL) -> Roofline:
        peaks = LinearPeaks(library, self._fastest_s)
        return Roofline(peaks.read_bytes_per_s(), peaks.operations_per_s(self._kind), self._kind)

    def _of_torch(self) -> Roofline:
        memory = torch.ones(_READ_BYTES // 4, dtype=torch.float32, device=self._device)
        read_s = self._fastest_s(lambda: memory.sum())
        multiply_s = self._fastest_s(self._product())
        return Roofline(_READ_BYTES / read_s, 2 * _SIZE**3 / multiply_s, self._kind)

    def _product(self) -> Callable[[], object]:
        if self._kind == "w8a8":
            numbers = torch.randint(-127, 128, (_SIZE, _SIZE), dtype=torch.int8).to(self._device)
            return lambda: torch._int_mm(numbers, numbers)
        dtype = getattr(torch, self._kind, torch.bfloat16)
        matrix = torch.randn(_SIZE, _SIZE, device=self._device)
        matrix = matrix.to(dtype if dtype.is_floating_point else torch.bfloat16)
        return lambda: matrix @ matrix

    def _fastest_s(self, work: Callable[[], object]) -> float:
        """Of some runs, after one to warm up."""
        times: list[float] = []
        for _ in range(1 + _REPEATS):
            wait_for(self._device)
            started_s = self._clock.now()
            work()
            wait_for(self._device)
            times.append(self._clock.now() - started_s)
        return min(times[1:])


def best_of(first: Roofline, second: Roofline) -> Roofline:
    """Of two measurements of one machine: what it was once able to do."""
    return Roofline(
        max(first.read_bytes_per_s, second.read_bytes_per_s),
        max(first.matmul_ops_per_s, second.matmul_ops_per_s),
        first.matmul_type,
    )


def wait_for(device: torch.device) -> None:
    """Returns when all that was started on `device` is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
