"""What the C++ functions of attention and norms take."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

_P, _N, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


class ShapeStruct(ctypes.Structure):
    """`AttentionShape` of attention_plan.h, field by field."""

    _fields_ = (
        ("query_starts", _P),
        ("context_lens", _P),
        ("block_tables", _P),
        ("num_sequences", _N),
        ("table_width", _N),
        ("window", _N),
        ("num_heads", _N),
        ("num_kv_heads", _N),
        ("head_dim", _N),
        ("block_size", _N),
        ("block_stride", _N),
    )


_ARGUMENTS = {
    "rms_norm": (_P, _N, _P, _P, _N, _N, _F),
    "add_rms_norm": (_P, _P, _P, _N, _N, _F),
    "silu_mul": (_P, _P, _N, _N),
    "paged_attention": (ctypes.POINTER(ShapeStruct), _P, _N, _P, _P, _P, _F),
}


@dataclass(frozen=True, slots=True)
class Functions:
    """The functions for one element type; see the .cpp files for their arguments."""

    rms_norm: Callable[..., None]
    add_rms_norm: Callable[..., None]
    silu_mul: Callable[..., None]
    paged_attention: Callable[..., None]


def declare(library: ctypes.CDLL, suffix: str) -> Functions:
    """The functions whose names end with `suffix`, an element type."""
    functions = {}
    for name, arguments in _ARGUMENTS.items():
        function = library[f"tandem_{name}_{suffix}"]
        function.argtypes = arguments
        function.restype = None
        functions[name] = function
    return Functions(**functions)
