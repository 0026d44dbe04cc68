"""The safetensors files of a Hugging Face directory, and where each tensor lies in them.

| header length, 8 bytes | header: JSON {name: dtype, shape, data_offsets} | data |
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from core.errors import ConfigError
from text.fields import Fields, read_json

INDEX_NAME = "model.safetensors.index.json"
# The format's own limit; a larger number means that this is no safetensors file.
_MAX_HEADER_BYTES = 100_000_000


@dataclass(frozen=True, slots=True)
class SafetensorsTensor:
    """One tensor: row-major shape, and where its bytes lie, from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    offset_bytes: int
    size_bytes: int


def safetensors_files(directory: Path) -> tuple[Path, ...]:
    """The weight files in order of name: those of the index, else every safetensors file.

    Raises ConfigError naming what is missing.
    """
    index = read_json(directory / INDEX_NAME)
    if index is not None:
        names = sorted({str(file) for file in index.section("weight_map").values.values()})
        files = tuple(directory / name for name in names)
    else:
        files = tuple(sorted(directory.glob("*.safetensors")))
    missing = [file.name for file in files if not file.is_file()]
    if missing or not files:
        what = f"lacks {', '.join(missing)}" if missing else "holds no *.safetensors weights"
        raise ConfigError(f"{directory} {what}")
    return files


def read_safetensors_header(path: Path) -> dict[str, SafetensorsTensor]:
    """Tensor name -> place. Raises ConfigError if the file is malformed or truncated."""
    with path.open("rb") as file:
        size_bytes = int.from_bytes(file.read(8), "little")
        if not 0 < size_bytes <= _MAX_HEADER_BYTES:
            raise ConfigError(f"{path} is not a safetensors file")
        header = file.read(size_bytes)
    try:
        entries = json.loads(header)
    except ValueError as error:
        raise ConfigError(f"{path}: malformed safetensors header: {error}") from None
    end_bytes = path.stat().st_size
    tensors = {}
    for name, entry in entries.items():
        if name != "__metadata__":
            tensors[name] = _tensor(f"{path}: {name}", entry, 8 + size_bytes, end_bytes)
    return tensors


def _tensor(where: str, entry: object, start_bytes: int, end_bytes: int) -> SafetensorsTensor:
    fields = Fields(where, entry if isinstance(entry, dict) else {})
    offsets = fields.integers("data_offsets")
    if len(offsets) != 2 or not 0 <= offsets[0] <= offsets[1] <= end_bytes - start_bytes:
        raise ConfigError(f"{where}: data_offsets {offsets} are not inside the file (truncated?)")
    return SafetensorsTensor(
        fields.text("dtype"),
        fields.integers("shape"),
        start_bytes + offsets[0],
        offsets[1] - offsets[0],
    )
