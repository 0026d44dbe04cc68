"""What a step must at least read and compute, from the model's card: the numerators of MBU and MFU.

Model FLOPs utilisation as in Chowdhery et al., "PaLM" (2022), appendix B; bandwidth utilisation is
the same idea for decode steps, which read all weights and all KV once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from core.config import ModelConfig
from core.kv_spec import DTYPE_BYTES, KVSpec
from text.card import ModelCard
from text.decoder_tensors import Shape, decoder_tensors

_SCALE_BYTES = 4


def weight_bytes(card: ModelCard, model: ModelConfig, dtype: str) -> int:
    """Weights that one step reads: everything but an embedding that isn't the head too."""
    per_element = DTYPE_BYTES[dtype]
    scheme = _scheme(card, model)
    total = 0.0
    for shape in _read_tensors(card):
        size = math.prod(shape)
        if scheme == "none" or len(shape) < 2 or _is_vocabulary(card, shape):
            total += size * per_element
        elif scheme == "int4":
            group = model.quantization_group_size
            total += size / 2 + size / group * 2 * _SCALE_BYTES
        else:
            total += size + shape[0] * _SCALE_BYTES
    return int(total)


def kv_bytes(spec: KVSpec, batch: int, context: int) -> int:
    """KV that one decode step of the batch reads."""
    total = 0
    for g in spec.groups:
        per_token = 2 * g.num_layers * g.num_kv_heads * spec.bytes_per_row(g.head_dim)
        total += per_token * (context if g.window is None else min(g.window, context))
    return batch * total


def prompt_operations(card: ModelCard, prompt_len: int) -> float:
    """Multiplications and additions for a prompt alone: linear layers of every token, attention
    of every pair that is not masked, the head of the last token."""
    linear = sum(
        2.0 * math.prod(shape) * (1 if _is_vocabulary(card, shape) else prompt_len)
        for shape in _read_tensors(card)
        if len(shape) == 2
    )
    pairs = prompt_len * (prompt_len + 1) / 2
    attention = 4.0 * pairs * card.num_layers * card.num_heads * card.head_dim
    return linear + attention


def _read_tensors(card: ModelCard) -> Iterator[Shape]:
    """Shapes of what a step reads whole: an embedding only where it is the head as well."""
    shapes = iter(decoder_tensors(card).values())
    embedding = next(shapes)
    if card.tie_word_embeddings:
        yield embedding
    yield from shapes


def _is_vocabulary(card: ModelCard, shape: Shape) -> bool:
    return shape == (card.vocab_size, card.hidden_size)


def _scheme(card: ModelCard, model: ModelConfig) -> str:
    if model.quantization != "auto":
        return model.quantization
    kind = card.quantization.lower()
    return "int4" if "4" in kind else "int8" if "8" in kind else "none"
