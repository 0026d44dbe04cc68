"""What linears are held against, this CPU's limits: the Python side of linear_peaks.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from tandem_kernels.host_memory import lazy_zeros

# Loops of linear_peaks.cpp: what each format's products are made of
_LOOPS = {"float32": 0, "bfloat16": 1, "int8": 2, "int4": 3, "w8a8": 3}
_ROUNDS = 100_000
_READ_BYTES = 256 * 2**20
"""Far beyond any cache."""


class LinearPeaks:
    """Measures on the library's threads. `fastest_s` runs some work and gives its least time."""

    def __init__(
        self, library: ctypes.CDLL, fastest_s: Callable[[Callable[[], object]], float]
    ) -> None:
        self._library = library
        self._fastest_s = fastest_s
        library.tandem_peak_operations.argtypes = [ctypes.c_int32, ctypes.c_int64]
        library.tandem_peak_operations.restype = ctypes.c_int64
        library.tandem_peak_read.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        library.tandem_peak_read.restype = None

    def operations_per_s(self, weight_format: str) -> float:
        """Of nothing but the format's instruction; a product and its addition are two."""
        loop = _LOOPS[weight_format]
        operations = self._library.tandem_peak_operations(loop, 1) * _ROUNDS
        work = self._library.tandem_peak_operations
        return float(operations) / self._fastest_s(lambda: work(loop, _ROUNDS))

    def read_bytes_per_s(self) -> float:
        """Of reading memory from front to end, in huge pages."""
        memory = lazy_zeros(_READ_BYTES)
        memory.fill_(1)
        read = self._library.tandem_peak_read
        return _READ_BYTES / self._fastest_s(lambda: read(memory.data_ptr(), _READ_BYTES))
