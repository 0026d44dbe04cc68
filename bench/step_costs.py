"""What a step must at least read and compute, from the model's card: the numerators of MBU and MFU.

Model FLOPs utilisation as in Chowdhery et al., "PaLM" (2022), appendix B; bandwidth utilisation is
the same idea for decode steps, which read all weights and all KV once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from core.config import ModelConfig
from core.kv_spec import DTYPE_BYTES, KVSpec
from text.card import ModelCard
from text.decoder_tensors import Shape, decoder_tensors
from text.weight_bytes import served_weights, weight_bytes

# Within the names of what is served: int8, gptq-int4-g128, Q4_1.
_WHOLE_NUMBERS = re.compile(r"(?:int|Q)([48])")


def step_weight_bytes(card: ModelCard, model: ModelConfig, dtype: str) -> int:
    """Weights that one step reads: all of them, a tied head once.

    Of an embedding that isn't the head as well it reads a row for each token, which is not counted.
    """
    total = weight_bytes(card, model, dtype)
    if card.tie_word_embeddings:
        return total
    return total - card.vocab_size * card.hidden_size * DTYPE_BYTES[dtype]


def product_kind(card: ModelCard, model: ModelConfig, dtype: str) -> str:
    """What most linear layers multiply: a dtype, or the weights' `int8`, `int4` or `w8a8`."""
    served = served_weights(card, model, dtype)
    found = _WHOLE_NUMBERS.search(served)
    return served if found is None else f"int{found[1]}"


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
        for shape in _multiplied_tensors(card)
        if len(shape) == 2
    )
    pairs = prompt_len * (prompt_len + 1) / 2
    attention = 4.0 * pairs * card.num_layers * card.num_heads * card.head_dim
    return linear + attention


def _multiplied_tensors(card: ModelCard) -> Iterator[Shape]:
    """Shapes of what a step multiplies by: an embedding only where it is the head as well."""
    shapes = iter(decoder_tensors(card).values())
    embedding = next(shapes)
    if card.tie_word_embeddings:
        yield embedding
    yield from shapes


def _is_vocabulary(card: ModelCard, shape: Shape) -> bool:
    return shape == (card.vocab_size, card.hidden_size)
