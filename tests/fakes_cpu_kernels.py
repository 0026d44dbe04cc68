"""The compiled kernels, as tests ask for them: they must be there, on so many threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from tandem_kernels.cpu.kernels import CpuKernels
from tandem_kernels.cpu.library import cpu_library


def cpu_kernels(dtype: torch.dtype) -> CpuKernels:
    library = cpu_library()
    assert library is not None
    return CpuKernels(library, dtype)


@contextmanager
def kernel_threads(number: int) -> Iterator[None]:
    """So many compute threads within the block."""
    library = cpu_library()
    assert library is not None
    before = library.tandem_num_threads()
    library.tandem_set_num_threads(number)
    yield
    library.tandem_set_num_threads(before)
