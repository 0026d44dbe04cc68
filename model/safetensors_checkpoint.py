"""Weights of a Hugging Face directory: one safetensors file, or several with an index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from safetensors import SafetensorError, safe_open
from tandem_kernels import QuantizedWeight
from torch import Tensor

from core.errors import ConfigError
from text.safetensors_files import read_safetensors_header, safetensors_files

FLOATS = ("F32", "BF16", "F16")


class SafetensorsCheckpoint:
    """A `Checkpoint` over the directory's files, which stay mapped until it is closed."""

    def __init__(self, directory: Path, types: Sequence[str] = FLOATS) -> None:
        """`types` are those that tensors may have. Raises ConfigError for one of another."""
        self._directory = directory
        self._supported = tuple(types)
        self.types: dict[str, str] = {}
        """Every tensor's, as the files name it."""
        self._file_of: dict[str, Path] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._stack = ExitStack()
        self._open: dict[Path, safe_open] = {}
        for file in safetensors_files(directory):
            self._add(file)

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._shapes

    def read(self, name: str, rows: range | None = None, columns: range | None = None) -> Tensor:
        try:
            tensor = self._handle(self._file_of[name]).get_slice(name)[_slices(rows, columns)]  # type: ignore[no-untyped-call]
        except SafetensorError as error:
            raise ConfigError(f"{self._directory}: cannot read tensor {name}: {error}") from None
        assert isinstance(tensor, Tensor)
        return tensor

    def read_quantized(
        self, name: str, rows: range | None = None, columns: range | None = None
    ) -> QuantizedWeight | None:
        return None

    def __enter__(self) -> SafetensorsCheckpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open.clear()
        self._stack.close()

    def _add(self, file: Path) -> None:
        for name, tensor in read_safetensors_header(file).items():
            if tensor.dtype not in self._supported:
                raise ConfigError(
                    f"{file}: tensor {name} has type {tensor.dtype}; supported: "
                    f"{', '.join(self._supported)}"
                )
            self._file_of[name] = file
            self.types[name] = tensor.dtype
            self._shapes[name] = tensor.shape

    def _handle(self, file: Path) -> safe_open:
        if file not in self._open:
            self._open[file] = self._stack.enter_context(safe_open(file, framework="pt"))
        return self._open[file]


def _slices(rows: range | None, columns: range | None) -> tuple[slice, ...]:
    first = slice(None) if rows is None else slice(rows.start, rows.stop)
    return (first,) if columns is None else (first, slice(columns.start, columns.stop))
