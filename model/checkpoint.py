"""Where weights come from: named tensors of which a rank reads only its own part."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Protocol

from tandem_kernels import QuantizedWeight
from torch import Tensor

from model.gguf_checkpoint import GGUFCheckpoint
from model.quantization.quantized_checkpoint import QuantizedCheckpoint
from model.safetensors_checkpoint import SafetensorsCheckpoint
from text.card import ModelCard
from text.families.registry import family_named
from text.stored_quantization import stored_quantization


class Checkpoint(AbstractContextManager["Checkpoint"], Protocol):
    """Tensors under Hugging Face's names, in Hugging Face's layout, whatever the file's own are."""

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Every tensor in the files."""
        ...

    def read(self, name: str, rows: range | None = None, columns: range | None = None) -> Tensor:
        """One tensor, or the given rows and columns of it, on the CPU, in a floating type."""
        ...

    def read_quantized(
        self, name: str, rows: range | None = None, columns: range | None = None
    ) -> QuantizedWeight | None:
        """The same as whole numbers, exactly; None where it isn't stored in a form that kernels
        take, or where `columns` begin or end within a group."""
        ...


def open_checkpoint(card: ModelCard) -> Checkpoint:
    """The files that `card` was read from. Raises ConfigError if they can't be opened."""
    if card.source.kind == "gguf":
        return GGUFCheckpoint(card.source.path, family_named(card.architecture), card.head_dim)
    stored = stored_quantization(card.source.path)
    if stored is not None:
        return QuantizedCheckpoint(card.source.path, stored)
    return SafetensorsCheckpoint(card.source.path)
