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


def random_cache(
    kv_heads: int, d: int, cache_type: torch.dtype, block_size: int = BLOCK_SIZE
) -> LayerCache:
    """Every code of the type occurs, and every token's scale is another."""
    k, v = torch.randn(2, NUM_BLOCKS, kv_heads, block_size, d)
    if cache_type.itemsize > 1:
        return LayerCache(k.to(cache_type), v.to(cache_type))
    scales = (torch.rand(2, NUM_BLOCKS, kv_heads, block_size) + 0.5).to(torch.bfloat16)
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


def random_batch(block_size: int = BLOCK_SIZE) -> AttentionMeta:
    sequences = PagedSequences(num_blocks=NUM_BLOCKS, block_size=block_size)
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


@pytest.mark.parametrize(("window", "softcap"), [(None, 0.0), (70, 0.0), (70, 4.0)])
@pytest.mark.parametrize(
    ("kv_heads", "group", "d", "block_size"),
    [(3, 3, 64, 16), (2, 1, 64, 8), (1, 8, 64, 32), (2, 3, 80, 8), (1, 8, 80, 16), (5, 1, 128, 32)]
    + [(4, 3, 128, 16), (1, 12, 64, 16)],
)
@pytest.mark.parametrize("cache_type", [torch.int8, torch.float8_e4m3fn])
def test_decode_and_prefill_of_a_quantised_cache_give_the_same_bits(
    cache_type: torch.dtype,
    kv_heads: int,
    group: int,
    d: int,
    block_size: int,
    window: int | None,
    softcap: float,
) -> None:
    cache = random_cache(kv_heads, d, cache_type, block_size)
    meta = random_batch(block_size)
    q = torch.randn(int(meta.query_starts[-1]), kv_heads * group, d).to(torch.bfloat16)
    kernels = cpu_kernels(torch.bfloat16)

    def attend(queries: Tensor, batch: AttentionMeta) -> Tensor:
        return kernels.paged_attention(
            queries, cache, batch, scale=d**-0.5, window=window, softcap=softcap
        )

    together = attend(q, meta)
    for i, row in [(0, 0), (1, 0), (2, 1), (3, 0), (3, 130), (3, 255), (3, 299), (4, 1)]:
        decoded = attend(part_of(q, meta, i, row, row + 1), alone(meta, i, row, row + 1))
        assert torch.equal(decoded, part_of(together, meta, i, row, row + 1))
    with kernel_threads(3):
        assert torch.equal(attend(q, meta), together)


@pytest.mark.parametrize("sharpness", [1, 8])
@pytest.mark.parametrize("scale_spread", [0.0, 4.0])
def test_whole_numbers_cost_int8_attention_no_precision(
    sharpness: float, scale_spread: float
) -> None:
    cache, meta = random_cache(2, 64, torch.int8), random_batch()
    assert cache.v_scales is not None
    spread = torch.exp2(torch.randn(cache.v_scales.shape) * scale_spread)
    cache.v_scales.copy_(cache.v_scales * spread)
    q = torch.randn(int(meta.query_starts[-1]), 6, 64).mul(sharpness).to(torch.bfloat16)
    out = cpu_kernels(torch.bfloat16).paged_attention(q, cache, meta, scale=0.125)
    expected = naive(q, cache, meta, 0.125, 10**6, 0.0)
    # Rounding to bfloat16 alone is off by up to 2^-8
    allowed = expected.abs() * 2**-8 + expected.abs().mean(-1, keepdim=True) * 2e-3
    assert ((out.double() - expected).abs() <= allowed).all()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_query_that_is_no_number_shows_in_its_own_rows_alone(value: float) -> None:
    cache, meta = random_cache(2, 64, torch.int8), random_batch()
    q = torch.randn(int(meta.query_starts[-1]), 6, 64).to(torch.bfloat16)
    kernels = cpu_kernels(torch.bfloat16)
    sound = kernels.paged_attention(q, cache, meta, scale=0.125)
    spoilt = q.clone()
    spoilt[0, 1, 7] = spoilt[40, 2, 63] = value
    out = kernels.paged_attention(spoilt, cache, meta, scale=0.125)
    assert out[0, 1].isnan().all() and out[40, 2].isnan().all()
    out[0, 1], out[40, 2] = sound[0, 1], sound[40, 2]
    assert torch.equal(out, sound)


def test_queries_and_values_of_zeros_are_numbers() -> None:
    cache, meta = random_cache(2, 64, torch.int8), random_batch()
    assert cache.v_scales is not None
    cache.v.zero_()
    cache.v_scales.fill_(torch.finfo(torch.float32).tiny)
    q = torch.zeros(int(meta.query_starts[-1]), 6, 64, dtype=torch.bfloat16)
    out = cpu_kernels(torch.bfloat16).paged_attention(q, cache, meta, scale=0.125)
    assert torch.equal(out, torch.zeros_like(out))
