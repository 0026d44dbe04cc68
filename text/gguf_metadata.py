"""The head of a GGUF file: metadata and tensor table, without the weights.

    | magic, version, counts | key, type, value ... | name, dims, type, offset ... | pad | weights |

Own reader because start-up waits for it: the gguf library's takes 2.3 s for the default model
(it wraps each of its 98,000 strings in arrays), this one about 0.05 s.
Format: ggml's docs/gguf.md, versions 2 and 3, little endian.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from core.errors import ConfigError

Value = int | float | bool | str | list[int] | list[float] | list[str]

# Type number -> name, elements in a block, bytes of a block.
GGML_TYPES = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    30: ("BF16", 1, 2),
}

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_STRING, _ARRAY = 8, 9
_MAX_DIMS = 4


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One entry of the tensor table.

    `shape` is row-major as in torch (GGUF stores it reversed): the last dimension is contiguous,
    and quantisation blocks run along it. `offset_bytes` counts from the start of the file.
    """

    name: str
    shape: tuple[int, ...]
    ggml_type: str
    offset_bytes: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class GGUFMetadata:
    """Key-value metadata and the tensor table of one file."""

    path: Path
    values: Mapping[str, Value]
    tensors: Mapping[str, GGUFTensor]
    data_start_bytes: int
    """Where the header ends and the weights begin."""


def read_gguf(path: Path) -> GGUFMetadata:
    """Reads the head of a GGUF file.

    Raises ConfigError for what is no GGUF file of a known version, truncated, or of unknown types.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _Reader(path, data).read()
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {path} as GGUF: {error}") from None


def float_vector(metadata: GGUFMetadata, name: str) -> tuple[float, ...]:
    """A small F32 tensor's values; empty if there is none. Raises ConfigError for another type."""
    tensor = metadata.tensors.get(name)
    if tensor is None:
        return ()
    if tensor.ggml_type != "F32":
        raise ConfigError(f"{metadata.path}: {name} is {tensor.ggml_type}, not F32")
    with metadata.path.open("rb") as file:
        file.seek(tensor.offset_bytes)
        data = file.read(tensor.size_bytes)
    return struct.unpack(f"<{tensor.size_bytes // 4}f", data)


class _Reader:
    """A cursor over the mapped file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._at = 0

    def read(self) -> GGUFMetadata:
        num_tensors, num_values = self._read_start()
        values: dict[str, Value] = {}
        for _ in range(num_values):
            key = self._string()
            values[key] = self._value(self._scalar("I"))
        table = [self._tensor_entry() for _ in range(num_tensors)]
        alignment = values.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0:
            raise ValueError(f"general.alignment is {alignment!r}")
        start = -(-self._at // alignment) * alignment
        return GGUFMetadata(self._path, values, self._place(table, start), start)

    def _read_start(self) -> tuple[int, int]:
        if self._take(4) != b"GGUF":
            raise ValueError("it does not begin with 'GGUF'")
        version = self._scalar("I")
        if version not in (2, 3):
            raise ValueError(f"version {version} is not supported (2 and 3 are; little endian)")
        return self._scalar("Q"), self._scalar("Q")

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        num_dims = self._scalar("I")
        if num_dims > _MAX_DIMS:
            raise ValueError(f"tensor {name!r} has {num_dims} dimensions")
        dims = tuple(self._scalar("Q") for _ in range(num_dims))
        return name, dims[::-1], self._scalar("I"), self._scalar("Q")

    def _place(
        self, table: list[tuple[str, tuple[int, ...], int, int]], start: int
    ) -> dict[str, GGUFTensor]:
        tensors: dict[str, GGUFTensor] = {}
        for name, shape, type_number, offset in table:
            type_name, size = _size_of(name, shape, type_number)
            if start + offset + size > self._size:
                raise ValueError(f"truncated: tensor {name!r} ends beyond the file's end")
            tensors[name] = GGUFTensor(name, shape, type_name, start + offset, size)
        return tensors

    def _value(self, kind: int) -> Value:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array()
        number: Value = self._unpack("<" + _scalar_format(kind))[0]
        return number

    def _array(self) -> Value:
        kind, length = self._scalar("I"), self._scalar("Q")
        if kind == _STRING:
            return self._strings(length)
        code = _scalar_format(kind)
        if length * struct.calcsize("<" + code) > self._size - self._at:
            raise ValueError(f"truncated inside an array of {length} values")
        return list(self._unpack(f"<{length}{code}"))

    def _strings(self, length: int) -> list[str]:
        """The hot loop: a vocabulary and its merges; so it keeps the cursor in a local."""
        data, at, size = self._data, self._at, self._size
        unpack: Callable[[mmap.mmap, int], tuple[int]] = struct.Struct("<Q").unpack_from
        if length * 8 > size - at:
            raise ValueError(f"truncated inside an array of {length} strings")
        strings = []
        for _ in range(length):
            end = at + 8 + unpack(data, at)[0] if at + 8 <= size else size + 1
            if end > size:
                raise ValueError("truncated inside a string")
            strings.append(data[at + 8 : end].decode("utf-8", "replace"))
            at = end
        self._at = at
        return strings

    def _string(self) -> str:
        return self._strings(1)[0]

    def _scalar(self, code: str) -> int:
        number: int = self._unpack("<" + code)[0]
        return number

    def _unpack(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(layout, self._take(struct.calcsize(layout)))

    def _take(self, num_bytes: int) -> bytes:
        if num_bytes > self._size - self._at:
            raise ValueError("truncated")
        self._at += num_bytes
        return self._data[self._at - num_bytes : self._at]


def _scalar_format(kind: int) -> str:
    if kind not in _SCALARS:
        raise ValueError(f"metadata type {kind} is unknown")
    return _SCALARS[kind]


def _size_of(name: str, shape: tuple[int, ...], type_number: int) -> tuple[str, int]:
    if type_number not in GGML_TYPES:
        raise ValueError(f"tensor {name!r} has the unknown type number {type_number}")
    type_name, block, block_bytes = GGML_TYPES[type_number]
    if shape and shape[-1] % block:
        raise ValueError(f"tensor {name!r}: rows of {shape[-1]} are no whole {type_name} blocks")
    num_elements = 1
    for dim in shape:
        num_elements *= dim
    return type_name, num_elements // block * block_bytes
