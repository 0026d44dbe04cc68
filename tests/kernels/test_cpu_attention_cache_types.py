"""C++ attention over caches of every type: against plain float64 arithmetic, and bit for bit."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import pytest
import torch
from fakes_cpu_kernels import cpu_kernels, kernel_threads
from fakes_paged_batch import PagedSequences
from tandem_kernels import AttentionMeta, LayerCache
from torch import Tensor

DTYPES = [torch.float32, torch.bfloat16]
CACHE_TYPES = [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn]
BLOCK_SIZE = 16
NUM_BLOCKS = 512


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with kernel_threads(1):
        yield


def random_cache(kv_heads: int, d: int, cache_type: torch.dtype) -> LayerCache:
    """Every code of the type occurs, and every token's scale is another."""
    k, v = torch.randn(2, NUM_BLOCKS, kv_heads, BLOCK_SIZE, d)
    if cache_type.itemsize > 1:
        return LayerCache(k.to(cache_type), v.to(cache_type))
    scales = (torch.rand(2, NUM_BLOCKS, kv_heads, BLOCK_SIZE) + 0.5).to(torch.bfloat16)
    if cache_type == torch.int8:
        codes = (k * 50).round().clamp(-128, 127), (v * 50).round().clamp(-128, 127)
        scales = scales / 50
    else:
        codes = k.where(torch.rand(k.shape) < 0.9, k / 1000), v
    return LayerCache(codes[0].to(cache_type), codes[1].to(cache_type), *scales)


def exact(values: Tensor, scales: Tensor | None) -> Tensor:
    return values.double() if scales is None else values.double() * scales.double()[..., None]


def naive(
    q: Tensor, cache: LayerCache, meta: AttentionMeta, scale: float, window: int, softcap: float
) -> Tensor:
    """The definition, sequence by sequence, in float64."""
    group = q.shape[1] // cache.k.shape[1]
    out = torch.empty(q.shape, dtype=torch.float64)
    for i, context_len in enumerate(meta.context_lens.tolist()):
        start, end = meta.query_starts[i : i + 2].tolist()
        blocks = meta.block_tables[i, : -(-context_len // BLOCK_SIZE)].long()
        k, v = (
            x[blocks].permute(1, 0, 2, 3).flatten(1, 2)[:, :context_len].repeat_interleave(group, 0)
            for x in (exact(cache.k, cache.k_scales), exact(cache.v, cache.v_scales))
        )  # [heads, S, d]
        scores = torch.einsum("thd,hsd->hts", q[start:end].double(), k) * scale
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        position = torch.arange(context_len - (end - start), context_len)[:, None]
        key = torch.arange(context_len)
        hidden = (key > position) | (key <= position - window)
        weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
        out[start:end] = torch.einsum("hts,hsd->thd", weights, v)
    return out


def random_batch() -> AttentionMeta:
    sequences = PagedSequences(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)
    sequences.step([("a", 699), ("b", 255), ("c", 31), ("d", 256)])
    return sequences.step([("a", 1), ("b", 1), ("c", 3), ("d", 300), ("e", 70)])[1]


def part_of(q: Tensor, meta: AttentionMeta, i: int, begin: int, end: int) -> Tensor:
    return q[int(meta.query_starts[i]) + begin : int(meta.query_starts[i]) + end]


def alone(meta: AttentionMeta, i: int, begin: int, end: int) -> AttentionMeta:
    """Queries begin .. end of sequence i, as a batch of their own."""
    num_queries = int(meta.query_starts[i + 1] - meta.query_starts[i])
    return dataclasses.replace(
        meta,
        query_starts=torch.tensor([0, end - begin], dtype=torch.int32),
        context_lens=meta.context_lens[i : i + 1] - (num_queries - end),
        block_tables=meta.block_tables[i : i + 1],
        num_decode=int(end - begin == 1),
    )


@pytest.mark.parametrize("softcap", [0.0, 4.0])
@pytest.mark.parametrize(("d", "window"), [(64, None), (40, 100), (7, None)])
@pytest.mark.parametrize("cache_type", CACHE_TYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_cache_type_gives_what_its_values_mean(
    dtype: torch.dtype, cache_type: torch.dtype, d: int, window: int | None, softcap: float
) -> None:
    cache, meta = random_cache(2, d, cache_type), random_batch()
    q = torch.randn(int(meta.query_starts[-1]), 6, d).to(dtype)
    out = cpu_kernels(dtype).paged_attention(
        q, cache, meta, scale=d**-0.5, window=window, softcap=softcap
    )
    expected = naive(q, cache, meta, d**-0.5, window or 10**6, softcap)
    tolerance = 5e-6 if dtype == torch.float32 else 2**-6
    torch.testing.assert_close(out.double(), expected, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("softcap", [0.0, 4.0])
@pytest.mark.parametrize("cache_type", CACHE_TYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_decoded_chunked_and_in_any_batch(
    dtype: torch.dtype, cache_type: torch.dtype, softcap: float
) -> None:
    cache, meta = random_cache(2, 64, cache_type), random_batch()
    q = torch.randn(int(meta.query_starts[-1]), 6, 64).to(dtype)
    kernels = cpu_kernels(dtype)

    def attend(queries: Tensor, batch: AttentionMeta) -> Tensor:
        return kernels.paged_attention(queries, cache, batch, scale=0.125, softcap=softcap)

    together = attend(q, meta)
    for i, cuts in enumerate(
        [[0, 1], [0, 1], [0, 1, 3], [0, 1, 2, 4, 9, 25, 41, 300], [0, 69, 70]]
    ):
        for begin, end in zip(cuts, cuts[1:], strict=False):
            piece = attend(part_of(q, meta, i, begin, end), alone(meta, i, begin, end))
            assert torch.equal(piece, part_of(together, meta, i, begin, end))
    for num_threads in (2, 3, 8):
        with kernel_threads(num_threads):
            assert torch.equal(attend(q, meta), together)
            assert torch.equal(attend(q[:1], alone(meta, 0, 0, 1)), together[:1])
