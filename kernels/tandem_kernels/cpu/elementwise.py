"""Norms and activations, row by row: the Python side of elementwise.cpp."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from tandem_kernels.cpu.kv_write import ELEMENT_TYPES
from tandem_kernels.decoder import Activation

_P, _N, _I, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float

ACTIVATIONS: dict[Activation, int] = {"silu": 0, "gelu": 1, "gelu_tanh": 2}
"""`Activation` of activation_rows.h."""


class Elementwise:
    """Functions of rows of one dtype; the last axis of every tensor is contiguous."""

    def __init__(self, library: ctypes.CDLL, dtype: torch.dtype) -> None:
        self._element = ELEMENT_TYPES[dtype]
        self._norm = library.tandem_norm
        self._norm.argtypes = (_I, _P, _P, _P, _N, _N, _P, _N, _N, _F)
        self._norm.restype = None
        self._add_rms_norm = library.tandem_add_rms_norm
        self._add_rms_norm.argtypes = (_I, _P, _P, _P, _N, _N, _F)
        self._add_rms_norm.restype = None
        self._activate = library.tandem_activate
        self._activate.argtypes = (_I, _I, _I, _P, _P, _N, _N)
        self._activate.restype = None

    def norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """Of the last axis, [T, size] or [T, heads, size] with contiguous heads; LayerNorm where
        there is a bias, else RMSNorm."""
        heads = 1 if x.ndim == 2 else x.shape[1]
        assert x.ndim == 2 or x.stride(1) == x.shape[2]
        out = torch.empty(x.shape, dtype=x.dtype)
        self._norm(
            self._element,
            weight.data_ptr(),
            None if bias is None else bias.data_ptr(),
            x.data_ptr(),
            x.stride(0),
            heads,
            out.data_ptr(),
            x.shape[0],
            x.shape[-1],
            eps,
        )
        return out

    def add_rms_norm(self, x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> None:
        """residual += x, then x = RMSNorm(residual)."""
        assert x.is_contiguous() and residual.is_contiguous()
        pointers = (x.data_ptr(), residual.data_ptr(), weight.data_ptr())
        self._add_rms_norm(self._element, *pointers, *x.shape, eps)

    def activate(self, x: Tensor, activation: Activation, *, gated: bool) -> Tensor:
        """[T, 2 * f] -> act(first half) * second half where `gated`, else [T, f] -> act."""
        assert x.is_contiguous()
        rows, width = x.shape[0], x.shape[1] // (2 if gated else 1)
        out = torch.empty((rows, width), dtype=x.dtype)
        function = ACTIVATIONS[activation]
        self._activate(self._element, function, gated, x.data_ptr(), out.data_ptr(), rows, width)
        return out
