"""What finding a row's largest output needs beside an int8 linear (linear_screen.cpp)."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from tandem_kernels.cpu.linear import CpuLinear


class _Screen(ctypes.Structure):
    """`TandemScreen` of linear_screen.h."""

    _fields_ = (("sums", ctypes.c_void_p), ("lengths", ctypes.c_void_p))


class LinearScreen:
    """Sums and lengths of one linear's columns: some 4 % of its weight's bytes."""

    def __init__(self, library: ctypes.CDLL, linear: CpuLinear) -> None:
        self._library = library = _declared(library)
        self._linear = linear
        num_sums = library.tandem_linear_screen_sums(linear.address)
        num_lengths = library.tandem_linear_screen_lengths(linear.address)
        self._sums = torch.empty(num_sums, dtype=torch.int16)
        self._lengths = torch.empty(num_lengths, dtype=torch.float32)
        pointers = (self._sums.data_ptr(), self._lengths.data_ptr())
        library.tandem_linear_make_screen(linear.address, *pointers)
        self._struct = _Screen(*pointers)
        self.address = ctypes.addressof(self._struct)
        """Of the `TandemScreen`, which lives as long as this object."""

    def largest(self, x: Tensor) -> Tensor:
        """The linear's [T, out] for x [T, in]: each row's largest output and all that equal it are
        exact, others may be anything below."""
        y = torch.empty((len(x), self._linear.out_features), dtype=torch.float32)
        pointers = (self._linear.address, self.address, x.data_ptr())
        self._library.tandem_linear_largest(*pointers, x.stride(0), len(x), y.data_ptr())
        return y


def screen_of(library: ctypes.CDLL, linear: CpuLinear) -> LinearScreen | None:
    """None for a linear that can't be screened."""
    can_screen = _declared(library).tandem_linear_can_screen(linear.address)
    return LinearScreen(library, linear) if can_screen else None


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, int64 = ctypes.c_void_p, ctypes.c_int64
    library.tandem_linear_can_screen.argtypes = [pointer]
    library.tandem_linear_can_screen.restype = ctypes.c_int32
    library.tandem_linear_screen_sums.argtypes = [pointer]
    library.tandem_linear_screen_sums.restype = int64
    library.tandem_linear_screen_lengths.argtypes = [pointer]
    library.tandem_linear_screen_lengths.restype = int64
    library.tandem_linear_make_screen.argtypes = [pointer, pointer, pointer]
    library.tandem_linear_make_screen.restype = None
    library.tandem_linear_largest.argtypes = [*[pointer] * 3, int64, int64, pointer]
    library.tandem_linear_largest.restype = None
    return library
