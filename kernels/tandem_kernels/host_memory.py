"""Large pieces of host memory, in huge pages where the system has them.

A decode step reads weights and KV from all over memory, far more than the TLB covers in pages of
4 KiB: attention over scattered blocks was measured to be twice as fast with pages of 2 MiB.
"""

from __future__ import annotations

import ctypes
import mmap

import torch
from torch import Tensor

from tandem_kernels.cpu.library import cpu_library


def lazy_zeros(size_bytes: int, *, in_huge_pages: bool = True) -> Tensor:
    """Zeroed memory, uint8 [size_bytes], page aligned. What is never touched takes no memory.

    Where little of it may ever be touched, here and there, small pages take less.
    """
    # Private: shared anonymous memory gets no huge pages
    memory = mmap.mmap(-1, max(size_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE if in_huge_pages else mmap.MADV_NOHUGEPAGE)
    return torch.frombuffer(memory, dtype=torch.uint8)[:size_bytes]


def touch(memory: Tensor, *, nice: int) -> None:
    """Makes the pages of contiguous `memory` present without changing a byte.

    Other threads may write to it meanwhile, and Python's lock is free. Done by a thread of lower
    priority, by `nice`. Does nothing on other systems than Linux, or without compiled kernels:
    pages then come with their first use, as they would have.
    """
    library = cpu_library()
    if library is None or memory.numel() == 0:
        return
    assert memory.is_contiguous()
    begin = memory.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    library.tandem_touch_pages.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32]
    library.tandem_touch_pages.restype = None
    library.tandem_touch_pages(begin, memory.data_ptr() + memory.nbytes - begin, nice)
