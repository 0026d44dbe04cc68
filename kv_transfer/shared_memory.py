"""Memory that two processes see: a file without a name, which goes with its last user (Linux).

memfd_create > size > seal > map; the descriptor is handed to the other process, which maps it too
and needs it no longer. Nothing is left behind, whoever dies, and however. Sealed, it can't be cut
short, so that nobody who has mapped it is killed for reading what is gone.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys

import torch

IS_SUPPORTED = sys.platform == "linux"


def create_shared(size_bytes: int) -> tuple[torch.Tensor, int]:
    """Zeroed memory, uint8 [size_bytes], and its descriptor, which the caller closes.

    What is never touched takes no memory. Raises OSError.
    """
    descriptor = os.memfd_create("tandem-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, max(size_bytes, 1))
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
        return _mapped(descriptor, size_bytes), descriptor
    except BaseException:
        os.close(descriptor)
        raise


def map_shared(descriptor: int, size_bytes: int) -> torch.Tensor:
    """The same memory in another process. Raises OSError, also if it is of another size or could
    be cut short."""
    if os.fstat(descriptor).st_size != max(size_bytes, 1):
        raise OSError(f"memory of {os.fstat(descriptor).st_size} bytes, not of {size_bytes}")
    if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
        raise OSError("memory that is not sealed")
    return _mapped(descriptor, size_bytes)


_SEALS = (fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL) if IS_SUPPORTED else 0


def _mapped(descriptor: int, size_bytes: int) -> torch.Tensor:
    memory = mmap.mmap(descriptor, max(size_bytes, 1))
    # It keeps the mapping for as long as it, or any part of it, is referred to
    return torch.frombuffer(memory, dtype=torch.uint8)[:size_bytes]
