"""Paged attention in plain torch: gather the keys of a plan's entry, then one dense attention.

Arithmetic is float32 whatever the cache holds: torch's bfloat16 attention is several times slower
on CPUs for single queries, and rounds the scores.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from tandem_kernels.attention_plan import AttentionPlan, DecodeBucket, PrefillChunk
from tandem_kernels.interface import LayerCache
from tandem_kernels.reference_kv_cache import gather_planes


def attend(
    q: Tensor,
    cache: LayerCache,
    plan: AttentionPlan,
    scale: float,
    softcap: float = 0.0,
) -> Tensor:
    """Runs every bucket and chunk of `plan`. q [T, heads, d] -> [T, heads, d]."""
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    for bucket in plan.buckets:
        _decode(q, cache, bucket, scale, softcap, out)
    for chunk in plan.chunks:
        _prefill(q, cache, chunk, scale, softcap, out)
    return out


def _decode(
    q: Tensor,
    cache: LayerCache,
    bucket: DecodeBucket,
    scale: float,
    softcap: float,
    out: Tensor,
) -> None:
    """The query heads that share a KV head become the rows of one small matrix."""
    b, num_heads, d = len(bucket.rows), q.shape[1], q.shape[2]
    num_kv_heads = cache.k.shape[1]
    queries = q.index_select(0, bucket.rows).float()  # [b, heads, d]
    attended = _attention(
        queries.view(b, num_kv_heads, num_heads // num_kv_heads, d),
        gather_planes(cache.k, cache.k_scales, bucket.planes).view(b, num_kv_heads, -1, d),
        gather_planes(cache.v, cache.v_scales, bucket.planes).view(b, num_kv_heads, -1, d),
        bucket.bias,
        scale,
        softcap,
    )  # [b, kv_heads, heads / kv_heads, d]
    out.index_copy_(0, bucket.rows, attended.reshape(b, num_heads, d).to(out.dtype))


def _prefill(
    q: Tensor,
    cache: LayerCache,
    chunk: PrefillChunk,
    scale: float,
    softcap: float,
    out: Tensor,
) -> None:
    num_kv_heads, d = cache.k.shape[1], q.shape[2]
    seen = slice(chunk.first_slot, chunk.last_slot)
    attended = _attention(
        q[chunk.start : chunk.end].float().transpose(0, 1).unsqueeze(0),  # [1, heads, t, d]
        gather_planes(cache.k, cache.k_scales, chunk.planes).view(1, num_kv_heads, -1, d)[
            :, :, seen
        ],
        gather_planes(cache.v, cache.v_scales, chunk.planes).view(1, num_kv_heads, -1, d)[
            :, :, seen
        ],
        chunk.bias,
        scale,
        softcap,
    )  # [1, heads, t, d]
    out[chunk.start : chunk.end] = attended.squeeze(0).transpose(0, 1)


def _attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, softcap: float
) -> Tensor:
    """q [b, heads, t, d], k, v [b, kv_heads, S, d]; bias [.., t, S], None: causal, t == S."""
    if softcap == 0.0:
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=bias, is_causal=bias is None, scale=scale, enable_gqa=True
        )
    groups = q.shape[1] // k.shape[1]
    scores = q @ k.repeat_interleave(groups, 1).transpose(2, 3)  # [b, heads, t, S]
    scores = torch.tanh(scores * (scale / softcap)) * softcap
    if bias is None:
        bias = torch.full(scores.shape[2:], float("-inf"), device=q.device).triu(1)
    return (scores + bias).softmax(-1) @ v.repeat_interleave(groups, 1)
