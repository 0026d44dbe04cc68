"""Linear layers on packed weights: the Python side of linear.cpp."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from tandem_kernels.cpu.weight_arena import WeightArena

# Numbers of `ElementType` in linear_tile.h
_ELEMENT_TYPES = {torch.float32: 0, torch.bfloat16: 1}


class _Linear(ctypes.Structure):
    """`TandemLinear` of linear.h."""

    _fields_ = [
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("in_features", ctypes.c_int64),
        ("out_features", ctypes.c_int64),
        ("type", ctypes.c_int32),
        ("y_type", ctypes.c_int32),
        ("portable", ctypes.c_int32),
    ]


class CpuLinear:
    """y = x W^T + b. x [T, in] of the weight's dtype -> [T, out].

    A row's bits depend on that row alone: not on T, its place, or the number of threads.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        packed: Tensor,
        bias: Tensor | None,
        *,
        shape: tuple[int, int],
        dtype: torch.dtype,
        out_dtype: torch.dtype,
        portable: bool,
    ) -> None:
        self._library = library
        self.out_features, self._in_features = shape
        self._dtype, self._out_dtype = dtype, out_dtype
        self._memory = (packed, bias)  # what the structure points to
        self._linear = _Linear(
            weight=packed.data_ptr(),
            bias=None if bias is None else bias.data_ptr(),
            in_features=self._in_features,
            out_features=self.out_features,
            type=_ELEMENT_TYPES[dtype],
            y_type=_ELEMENT_TYPES[out_dtype],
            portable=portable,
        )
        self.address = ctypes.addressof(self._linear)
        """Of the `TandemLinear`, which lives as long as this object."""

    def __call__(self, x: Tensor) -> Tensor:
        assert x.stride(1) == 1
        num_rows = x.shape[0]
        y = torch.empty((num_rows, self.out_features), dtype=self._out_dtype)
        self._library.tandem_linear(
            self.address, x.data_ptr(), x.stride(0), num_rows, y.data_ptr()
        )
        return y

    def weight_rows(self, indices: Tensor) -> Tensor:
        """`PackedLinear.weight_rows`; a row is gathered from all over its panel."""
        assert indices.dtype == torch.int64 and indices.is_contiguous()
        rows = torch.empty((len(indices), self._in_features), dtype=self._dtype)
        if not self._library.tandem_linear_weight_rows(
            self.address, indices.data_ptr(), len(indices), rows.data_ptr()
        ):
            raise IndexError(f"an index is not in 0 .. {self.out_features - 1}")
        return rows


class LinearPacker:
    """Packs the linear layers of one model, side by side."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = _declared(library)
        self._arena = WeightArena()

    def pack(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        out_dtype: torch.dtype | None = None,
        portable: bool = False,
    ) -> CpuLinear:
        """Copies weight [out, in] and bias [out]; neither is needed any more.

        `portable` leaves out instructions that only some CPUs have.
        """
        element, shape = _ELEMENT_TYPES[weight.dtype], (weight.shape[0], weight.shape[1])
        weight = weight.contiguous()
        packed = self._arena.allocate(self._library.tandem_linear_packed_bytes(element, *shape))
        self._library.tandem_linear_pack(element, weight.data_ptr(), *shape, packed.data_ptr())
        return CpuLinear(
            self._library,
            packed,
            None if bias is None else bias.to(torch.float32, copy=True).contiguous(),
            shape=shape,
            dtype=weight.dtype,
            out_dtype=out_dtype or weight.dtype,
            portable=portable,
        )


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, int32, int64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    library.tandem_linear_packed_bytes.argtypes = [int32, int64, int64]
    library.tandem_linear_packed_bytes.restype = int64
    library.tandem_linear_pack.argtypes = [int32, pointer, int64, int64, pointer]
    library.tandem_linear_pack.restype = None
    library.tandem_linear.argtypes = [pointer, pointer, int64, int64, pointer]
    library.tandem_linear.restype = None
    library.tandem_linear_weight_rows.argtypes = [pointer, pointer, int64, pointer]
    library.tandem_linear_weight_rows.restype = int32
    return library
