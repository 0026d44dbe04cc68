"""Kernels for CPUs whose linear layers are in C++, the rest in torch."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from tandem_kernels.cpu.linear import LinearPacker
from tandem_kernels.interface import PackedLinear
from tandem_kernels.reference import ReferenceKernels

CPU_DTYPES = (torch.float32, torch.bfloat16)


class CpuLinearKernels(ReferenceKernels):
    """`Kernels` for `CPU_DTYPES`; one object per model, whose weights it packs."""

    def __init__(self, library: ctypes.CDLL) -> None:
        super().__init__()
        self._linears = LinearPacker(library)

    def pack_linear(
        self, weight: Tensor, bias: Tensor | None, *, out_dtype: torch.dtype | None = None
    ) -> PackedLinear:
        return self._linears.pack(weight, bias, out_dtype=out_dtype)
