"""What a step must at least read and compute, from the model's card: the numerators of MBU and MFU.

Model FLOPs utilisation as in Chowdhery et al., "PaLM" (2022), appendix B; bandwidth utilisation is
the same idea for decode steps, which read all weights and all KV once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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
    return batch * _kv_bytes(spec, 1, context)


def prompt_operations(card: ModelCard, prompt_len: int) -> float:
    """Multiplications and additions for a prompt alone: linear layers of every token, attention
    of every pair that is not masked, the head of the last token."""
    any_spec = card.kv_spec(16, "bfloat16")
    costs = step_costs(card, any_spec, weight_bytes=0)
    return costs.operations([prompt_len], [prompt_len], num_rows=1)


@dataclass(frozen=True, slots=True)
class StepCosts:
    """What steps of one model cost, whatever is in them."""

    weight_bytes: int
    """Of one step; see `step_weight_bytes`."""
    token_operations: float
    """Linear layers but the head."""
    row_operations: float
    """The head, for each row whose logits are computed."""
    pair_operations: float
    """Attention, for each layer and each pair of a query and a key."""
    spec: KVSpec

    def operations(
        self, query_lens: Sequence[int], context_lens: Sequence[int], num_rows: int
    ) -> float:
        """Of a step whose sequences compute so many tokens each, at the ends of such contexts."""
        pairs = 0
        for group in self.spec.groups:
            for queries, context in zip(query_lens, context_lens, strict=True):
                pairs += group.num_layers * _num_pairs(queries, context, group.window)
        return (
            self.token_operations * sum(query_lens)
            + self.row_operations * num_rows
            + self.pair_operations * pairs
        )

    def read_bytes(self, query_lens: Sequence[int], context_lens: Sequence[int]) -> int:
        """Weights, and each sequence's KV once."""
        lens = zip(query_lens, context_lens, strict=True)
        return self.weight_bytes + sum(_kv_bytes(self.spec, *each) for each in lens)


def step_costs(card: ModelCard, spec: KVSpec, *, weight_bytes: int) -> StepCosts:
    """`weight_bytes` is `step_weight_bytes` of what is served."""
    shapes = [shape for shape in _multiplied_tensors(card) if len(shape) == 2]
    heads = [shape for shape in shapes if _is_vocabulary(card, shape)]
    others = [shape for shape in shapes if not _is_vocabulary(card, shape)]
    return StepCosts(
        weight_bytes=weight_bytes,
        token_operations=2.0 * sum(map(math.prod, others)),
        row_operations=2.0 * sum(map(math.prod, heads)),
        pair_operations=4.0 * card.num_heads * card.head_dim,
        spec=spec,
    )


def _num_pairs(queries: int, context: int, window: int | None) -> int:
    """Queries and keys that see each other: the i-th last query sees `context - i` keys, and no
    more than the window."""
    if window is None or context <= window:
        return queries * context - queries * (queries - 1) // 2
    beyond = min(queries, context - window)  # the last queries, which see a whole window
    return beyond * window + _num_pairs(queries - beyond, context - beyond, None)


def _kv_bytes(spec: KVSpec, queries: int, context: int) -> int:
    total = 0
    for group in spec.groups:
        per_token = 2 * group.num_layers * group.num_kv_heads * spec.bytes_per_row(group.head_dim)
        seen = context if group.window is None else min(group.window + queries - 1, context)
        total += per_token * seen
    return total


def _multiplied_tensors(card: ModelCard) -> Iterator[Shape]:
    """Shapes of what a step multiplies by: an embedding only where it is the head as well."""
    shapes = iter(decoder_tensors(card).values())
    embedding = next(shapes)
    if card.tie_word_embeddings:
        yield embedding
    yield from shapes


def _is_vocabulary(card: ModelCard, shape: Shape) -> bool:
    return shape == (card.vocab_size, card.hidden_size)
