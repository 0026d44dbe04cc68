"""Names for the parts of a step in a GPU's profile (NVTX); nothing at all without a GPU."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch

ProfileRange = Callable[[str], AbstractContextManager[None]]
"""`with range("schedule"): ...`"""

_NOTHING: AbstractContextManager[None] = nullcontext()


def profile_ranges() -> ProfileRange:
    """NVTX ranges where there is a GPU whose profiler could show them."""
    return _nvtx_range if torch.cuda.is_available() else _no_range


def _nvtx_range(name: str) -> AbstractContextManager[None]:
    return torch.cuda.nvtx.range(name)


def _no_range(name: str) -> AbstractContextManager[None]:
    return _NOTHING
