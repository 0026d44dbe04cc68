"""The best tokens of each row in one total order: higher logit first, then lower id.

torch.topk alone leaves the order of equal logits open, and with 16-bit weights equal logits are
common; then a row's answer would depend on how many others are in the batch.
"""

from __future__ import annotations

import torch


def top_tokens(logits: torch.Tensor, num_tokens: int) -> torch.Tensor:
    """Ids of the `num_tokens` best tokens, best first.

    `logits` is [n, vocab] float32 without NaN; returns [n, num_tokens] int64.
    """
    vocab_size = logits.shape[-1]
    keys = _order_keys(logits)
    if num_tokens < vocab_size:
        best = keys.topk(num_tokens).values
    else:
        best = keys.sort(dim=-1, descending=True).values
    return (vocab_size - 1) - (best & 0xFFFFFFFF)


def _order_keys(logits: torch.Tensor) -> torch.Tensor:
    """Distinct integers in the same order: the float's bits above, the reversed id below."""
    # Adding zero turns -0.0 into 0.0, which are equal as numbers but not as bits.
    bits = (logits + 0.0).view(torch.int32)
    # Negative floats grow downwards in magnitude: flip all bits but the sign.
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    vocab_size = logits.shape[-1]
    reversed_ids = torch.arange(vocab_size - 1, -1, -1, device=logits.device)
    return ordered.to(torch.int64).bitwise_left_shift_(32).bitwise_or_(reversed_ids)
