"""Linear layers on packed weights of every format: the Python side of linear.cpp."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from tandem_kernels.cpu.weight_arena import WeightArena
from tandem_kernels.packed_linear import QuantizedWeight

# Numbers of `ElementType` in linear.h
_ELEMENT_TYPES = {torch.float32: 0, torch.bfloat16: 1}
# Numbers of `WeightFormat` in linear.h
_PLAIN = 0
_FORMATS = {"int8": 1, "int4": 2, "w8a8": 3}
# Groups are whole words of int4, and sums within one (up to the whole column) stay in an int32
_GROUP_MULTIPLE = 8
_MAX_GROUP = 512


class _Linear(ctypes.Structure):
    """`TandemLinear` of linear.h."""

    _fields_ = (
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("in_features", ctypes.c_int64),
        ("out_features", ctypes.c_int64),
        ("type", ctypes.c_int32),
        ("y_type", ctypes.c_int32),
        ("format", ctypes.c_int32),
        ("group_size", ctypes.c_int32),
        ("has_offsets", ctypes.c_int32),
        ("half_scales", ctypes.c_int32),
    )


class CpuLinear:
    """y = x W^T + b. x [T, in] of the kernels' dtype -> [T, out].

    A row's bits depend on that row alone: not on T, its place, or the number of threads.
    """

    def __init__(
        self,
        library: ctypes.CDLL,
        linear: _Linear,
        memory: tuple[Tensor, Tensor | None],
        *,
        dtype: torch.dtype,
        out_dtype: torch.dtype,
    ) -> None:
        """`memory` is what `linear` points to."""
        self._library = library
        self._linear = linear
        self._memory = memory
        self._dtype, self._out_dtype = dtype, out_dtype
        self._in_features = int(linear.in_features)
        self.out_features = int(linear.out_features)
        self.address = ctypes.addressof(linear)
        """Of the `TandemLinear`, which lives as long as this object."""

    @property
    def packed_bytes(self) -> int:
        """Of the weight, scales included: what a product reads."""
        return self._memory[0].numel()

    def __call__(self, x: Tensor) -> Tensor:
        assert x.stride(1) == 1 and x.dtype == self._dtype
        num_rows = x.shape[0]
        y = torch.empty((num_rows, self.out_features), dtype=self._out_dtype)
        self._library.tandem_linear(self.address, x.data_ptr(), x.stride(0), num_rows, y.data_ptr())
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
    """Packs the linear layers of one model, side by side; all take x of one dtype."""

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype) -> None:
        self._library = _declared(library)
        self._dtype = dtype
        self._arena = WeightArena()

    def pack(
        self,
        weight: Tensor | QuantizedWeight,
        bias: Tensor | None,
        *,
        out_dtype: torch.dtype | None = None,
    ) -> CpuLinear:
        """Copies weight [out, in] and bias [out]; neither is needed any more.

        A plain weight is of the packer's dtype. Raises ValueError for groups of a size that no
        kernel takes.
        """
        num_rows, num_columns = (
            weight.values.shape if isinstance(weight, QuantizedWeight) else weight.shape
        )
        out_dtype = out_dtype or self._dtype
        bias = None if bias is None else bias.to(torch.float32, copy=True).contiguous()
        linear = _Linear(
            bias=None if bias is None else bias.data_ptr(),
            in_features=num_columns,
            out_features=num_rows,
            type=_ELEMENT_TYPES[self._dtype],
            y_type=_ELEMENT_TYPES[out_dtype],
            format=_PLAIN,
            group_size=num_columns,
        )
        if isinstance(weight, QuantizedWeight):
            packed = self._pack_quantized(linear, weight)
        else:
            packed = self._pack_plain(linear, weight)
        return CpuLinear(
            self._library, linear, (packed, bias), dtype=self._dtype, out_dtype=out_dtype
        )

    def _pack_plain(self, linear: _Linear, weight: Tensor) -> Tensor:
        assert weight.dtype == self._dtype
        packed = self._allocate(linear)
        weight = weight.contiguous()
        self._library.tandem_linear_pack(ctypes.addressof(linear), weight.data_ptr())
        return packed

    def _pack_quantized(self, linear: _Linear, weight: QuantizedWeight) -> Tensor:
        check_groups(weight)
        linear.format = _FORMATS[weight.scheme]
        linear.group_size = min(weight.group_size, linear.in_features)
        linear.has_offsets = weight.offsets is not None
        linear.half_scales = weight.scheme != "w8a8" and _fit_float16(weight)
        packed = self._allocate(linear)
        values = weight.values.contiguous()
        scales = weight.scales.float().contiguous()
        offsets = None if weight.offsets is None else weight.offsets.float().contiguous()
        self._library.tandem_linear_pack_quantized(
            ctypes.addressof(linear),
            values.data_ptr(),
            scales.data_ptr(),
            None if offsets is None else offsets.data_ptr(),
        )
        return packed

    def _allocate(self, linear: _Linear) -> Tensor:
        size_bytes = self._library.tandem_linear_packed_bytes(ctypes.addressof(linear))
        packed = self._arena.allocate(size_bytes)
        linear.weight = packed.data_ptr()
        return packed


def check_groups(weight: QuantizedWeight) -> None:
    """Raises ValueError for a weight whose groups no kernel takes."""
    num_columns, group_size = weight.values.shape[1], weight.group_size
    if weight.scheme == "w8a8":
        if group_size < num_columns or weight.offsets is not None:
            raise ValueError("w8a8 has one scale for a row of the weight, and no offsets")
    elif group_size < num_columns and (
        group_size % _GROUP_MULTIPLE or (group_size > _MAX_GROUP and group_size % _MAX_GROUP)
    ):
        raise ValueError(
            f"groups of {group_size} columns: possible are multiples of {_GROUP_MULTIPLE} up to "
            f"{_MAX_GROUP}, multiples of that, and all columns"
        )


def _fit_float16(weight: QuantizedWeight) -> bool:
    """Whether float16 holds every scale and offset exactly, as it does those of GGUF files."""
    figures = [weight.scales] if weight.offsets is None else [weight.scales, weight.offsets]
    return all(torch.equal(figure.half().float(), figure.float()) for figure in figures)


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, int32, int64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    library.tandem_linear_packed_bytes.argtypes = [pointer]
    library.tandem_linear_packed_bytes.restype = int64
    library.tandem_linear_pack.argtypes = [pointer, pointer]
    library.tandem_linear_pack.restype = None
    library.tandem_linear_pack_quantized.argtypes = [pointer, pointer, pointer, pointer]
    library.tandem_linear_pack_quantized.restype = None
    library.tandem_linear.argtypes = [pointer, pointer, int64, int64, pointer]
    library.tandem_linear.restype = None
    library.tandem_linear_weight_rows.argtypes = [pointer, pointer, int64, pointer]
    library.tandem_linear_weight_rows.restype = int32
    return library
