"""A Hugging Face directory whose linear layers are quantised, as a `Checkpoint`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tandem_kernels import QuantizedWeight
from tandem_kernels.reference_linear import dequantized
from torch import Tensor

from core.errors import ConfigError
from model.quantization.stored_formats import (
    FORMAT_PARTS,
    group_index,
    logical_shape,
    unpack,
)
from model.quantization.whole_numbers import part, with_group_size
from model.safetensors_checkpoint import FLOATS, SafetensorsCheckpoint
from text.stored_quantization import StoredQuantization

_INTEGERS = ("I8", "I32", "I64")


class QuantizedCheckpoint:
    """Shows each quantised layer as one tensor `...weight`; all else is as the files have it."""

    def __init__(self, directory: Path, stored: StoredQuantization) -> None:
        self._files = SafetensorsCheckpoint(directory, (*FLOATS, *_INTEGERS))
        self._stored = stored
        self._layers = _layers(directory, self._files, stored)
        hidden = {f"{layer}.{p}" for layer, parts in self._layers.items() for p in parts}
        self._shapes = {n: s for n, s in self._files.shapes.items() if n not in hidden}
        for layer, parts in self._layers.items():
            shapes = {p: self._files.shapes[f"{layer}.{p}"] for p in parts}
            self._shapes[f"{layer}.weight"] = logical_shape(stored, shapes)
        for name in self._shapes:
            if name not in self._files.types or self._files.types[name] in FLOATS:
                continue
            if name.removesuffix(".weight") not in self._layers:
                raise ConfigError(
                    f"{directory}: tensor {name} has type {self._files.types[name]}, but is no "
                    f"part of a layer in {stored.format}"
                )

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str, rows: range | None = None, columns: range | None = None) -> Tensor:
        layer = name.removesuffix(".weight")
        if layer not in self._layers or not name.endswith(".weight"):
            return self._files.read(name, rows, columns)
        parts = self._parts(layer)
        weight = unpack(name, self._stored, parts)
        floats = dequantized(weight, group_index(self._stored, parts))
        first = slice(None) if rows is None else slice(rows.start, rows.stop)
        second = slice(None) if columns is None else slice(columns.start, columns.stop)
        return floats[first, second]

    def read_quantized(
        self, name: str, rows: range | None = None, columns: range | None = None
    ) -> QuantizedWeight | None:
        layer = name.removesuffix(".weight")
        if layer not in self._layers or not name.endswith(".weight"):
            return None
        parts = self._parts(layer)
        if group_index(self._stored, parts) is not None:
            return None
        weight = with_group_size(unpack(name, self._stored, parts))
        return None if weight is None else part(weight, rows, columns)

    def __enter__(self) -> QuantizedCheckpoint:
        self._files.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._files.__exit__(kind, error, trace)

    def _parts(self, layer: str) -> dict[str, Tensor]:
        return {p: self._files.read(f"{layer}.{p}") for p in self._layers[layer]}


def _layers(
    directory: Path, files: SafetensorsCheckpoint, stored: StoredQuantization
) -> dict[str, list[str]]:
    """The quantised layers, and which parts each of them has. Raises ConfigError."""
    needed, allowed = FORMAT_PARTS[stored.format]
    found: dict[str, list[str]] = defaultdict(list)
    for name in files.shapes:
        layer, _, last = name.rpartition(".")
        if last in needed | allowed:
            found[layer].append(last)
    # A layer that was left alone has a floating weight and nothing else of the format
    layers = {layer: parts for layer, parts in found.items() if parts != ["weight"]}
    for layer, parts in layers.items():
        missing = sorted(needed - set(parts))
        if missing:
            raise ConfigError(f"{directory}: {layer} lacks {', '.join(missing)} of {stored.format}")
    if not layers:
        raise ConfigError(
            f"{directory} holds no layer in {stored.format}, which its config.json says"
        )
    return layers
