"""Chooses the kernels for a device."""

from __future__ import annotations

import torch

from tandem_kernels.interface import Kernels
from tandem_kernels.reference import ReferenceKernels


def select(device: torch.device, dtype: torch.dtype) -> Kernels:
    """The fastest kernels there are for tensors of `dtype` on `device`."""
    return ReferenceKernels()
