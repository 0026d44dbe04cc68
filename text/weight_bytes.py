"""How many bytes a model's weights take in the precision that they are served in.

    floats       2 or 4 bytes: norms, biases, an embedding that isn't the head
    int8, w8a8   a byte, and a scale of 4 bytes for each row
    int4         half a byte, and a scale and an offset of 2 bytes each for each group
    head         int8 where layers are rounded at load; as the layers in GGUF files; else floats

What a checkpoint holds quantised is told from the type of most of its weights, and counted as if
all linear layers were of it: a GGUF file may keep a few tensors in other types.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from core.config import ModelConfig
from core.kv_spec import DTYPE_BYTES
from text.card import ModelCard
from text.decoder_tensors import Shape, decoder_tensors
from text.families.registry import family_named

_ROW_SCALE_BYTES = 4
_GROUP_SCALE_BYTES = 2
# Blocks of GGUF that are served as whole numbers; all other types become floats.
_GGUF_BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8}
_GGUF_GROUP = 32
_STORED_NAME = re.compile(r".*-int(?P<bits>[48])(?:-g(?P<group>\d+))?")


def weight_bytes(card: ModelCard, config: ModelConfig, dtype: str) -> int:
    """Of the whole model; `dtype` is that of floats. A tied head counts once."""
    family = family_named(card.architecture)
    head = family.embedding if card.tie_word_embeddings else family.head
    forms = {name: _of_layers(card, config) for name in decoder_tensors(card)}
    forms[f"{family.embedding}.weight"] = None
    forms[f"{head}.weight"] = _of_head(card, config)
    total = 0
    for name, shape in decoder_tensors(card).items():
        form = forms[name]
        if form is None or len(shape) < 2:
            total += math.prod(shape) * DTYPE_BYTES[dtype]
        else:
            total += form.size_bytes(shape)
    return total


def served_weights(card: ModelCard, config: ModelConfig, dtype: str) -> str:
    """The layers' precision in words, as in `int4-g32`."""
    if config.quantization == "int4":
        return f"int4-g{config.quantization_group_size}"
    if config.quantization != "auto":
        return dtype if config.quantization == "none" else config.quantization
    return dtype if _of_layers(card, config) is None else card.quantization


@dataclass(frozen=True, slots=True)
class _WholeNumbers:
    bits: int
    group_size: int | None
    """None: all of a row."""

    def size_bytes(self, shape: Shape) -> int:
        num_rows, num_columns = shape
        values = num_rows * num_columns * self.bits // 8
        if self.group_size is None:
            return values + num_rows * _ROW_SCALE_BYTES
        num_groups = num_rows * -(-num_columns // self.group_size)
        return values + num_groups * _GROUP_SCALE_BYTES * (2 if self.bits == 4 else 1)


def _of_layers(card: ModelCard, config: ModelConfig) -> _WholeNumbers | None:
    """None: the layers are floats."""
    match config.quantization:
        case "none":
            return None
        case "int4":
            return _WholeNumbers(4, config.quantization_group_size)
        case "int8" | "w8a8":
            return _WholeNumbers(8, None)
    if card.quantization in _GGUF_BITS:
        return _WholeNumbers(_GGUF_BITS[card.quantization], _GGUF_GROUP)
    stored = _STORED_NAME.fullmatch(card.quantization)
    if stored is None:
        return None
    group = stored["group"]
    return _WholeNumbers(int(stored["bits"]), None if group is None else int(group))


def _of_head(card: ModelCard, config: ModelConfig) -> _WholeNumbers | None:
    if config.quantization in ("int8", "int4", "w8a8"):
        return _WholeNumbers(8, None)
    return _of_layers(card, config) if card.quantization in _GGUF_BITS else None
