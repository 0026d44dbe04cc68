"""Chooses the kernels for a device."""

from __future__ import annotations

import torch

from core.config import kernel_isa
from tandem_kernels.cpu.isa import choose_isa, cpu_features
from tandem_kernels.cpu.kernels import CPU_DTYPES, CpuKernels
from tandem_kernels.cpu.library import cpu_library
from tandem_kernels.cpu.sampling import CpuSampling
from tandem_kernels.interface import Kernels
from tandem_kernels.reference import ReferenceKernels


def select(device: torch.device, dtype: torch.dtype) -> Kernels:
    """The fastest kernels there are for tensors of `dtype` on `device`.

    On a CPU they use as many threads as torch does now, and are compiled if they aren't yet.
    """
    if device.type == "cpu" and dtype in CPU_DTYPES:
        library = cpu_library()
        if library is not None:
            library.tandem_set_num_threads(torch.get_num_threads())
            return CpuKernels(library, dtype)
    return ReferenceKernels(dtype)


def prefers_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 is the faster arithmetic there, and not only the smaller type."""
    if device.type != "cpu":
        return True
    return choose_isa(cpu_features(), kernel_isa()).multiplies_bfloat16


def select_sampling(device: torch.device) -> CpuSampling | None:
    """The compiled sampling for logits on `device`; None: there is none, torch has to do it."""
    library = cpu_library() if device.type == "cpu" else None
    return None if library is None else CpuSampling(library)
