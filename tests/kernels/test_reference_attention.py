"""The torch twin of paged attention, against a loop in float64 that knows nothing of blocks."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from fakes_paged_batch import PagedSequences
from hypothesis import given, settings
from hypothesis import strategies as st
from tandem_kernels import AttentionMeta, LayerCache
from tandem_kernels.attention_plan import BUCKET_COST_TOKENS, BUCKET_MAX_TOKENS, bucket_rows
from tandem_kernels.reference import ReferenceKernels
from torch import Tensor

Queries = list[tuple[str, int]]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


class Cache:
    """K and V of one layer, all NaN except where tokens were written: a stray read shows."""

    def __init__(
        self, sequences: PagedSequences, kv_heads: int, d: int, dtype: torch.dtype
    ) -> None:
        self.sequences = sequences
        shape = (sequences.num_blocks, kv_heads, sequences.block_size, d)
        self.k = torch.full(shape, float("nan"), dtype=dtype)
        self.v = torch.full(shape, float("nan"), dtype=dtype)

    def fill(self) -> None:
        """Random KV for every token of every sequence; other slots of their blocks are finite."""
        for table in self.sequences.tables.values():
            self.k[table] = torch.randn_like(self.k[table])
            self.v[table] = torch.randn_like(self.v[table])


def naive(
    q: Tensor,
    cache: Cache,
    queries: Queries,
    scale: float,
    window: int | None,
    softcap: float = 0.0,
) -> list[Tensor]:
    """One query and one head at a time, in float64."""
    rows = iter(q.double())
    outputs = []
    for name, num_tokens in queries:
        slots = torch.tensor(cache.sequences.slots(name))
        blocks, offsets = slots // cache.sequences.block_size, slots % cache.sequences.block_size
        for end in range(len(slots) - num_tokens + 1, len(slots) + 1):
            start = 0 if window is None else max(0, end - window)
            k = cache.k[blocks[start:end], :, offsets[start:end]].double()  # [S, kv_heads, d]
            v = cache.v[blocks[start:end], :, offsets[start:end]].double()
            outputs.append(naive_row(next(rows), k, v, scale, softcap))
    return outputs


def naive_row(q: Tensor, k: Tensor, v: Tensor, scale: float, softcap: float) -> Tensor:
    group = q.shape[0] // k.shape[1]
    heads = []
    for head in range(q.shape[0]):
        scores = k[:, head // group] @ q[head] * scale  # [S]
        if softcap:
            scores = softcap * torch.tanh(scores / softcap)
        weights = torch.softmax(scores, dim=0)
        heads.append(weights @ v[:, head // group])
    return torch.stack(heads)


MIXES: list[Queries] = [
    [("a", 1)],
    [("a", 33)],
    [("a", 1), ("b", 1), ("c", 1)],
    [("a", 1), ("b", 1), ("c", 17), ("d", 2)],
    [("a", 5), ("b", 16), ("c", 40)],
]


def step(
    mix: Queries, *, block_size: int, prefix: dict[str, int]
) -> tuple[PagedSequences, AttentionMeta]:
    sequences = PagedSequences(num_blocks=300, block_size=block_size)
    for name, length in prefix.items():
        sequences.step([(name, length)])
    return sequences, sequences.step(mix)[1]


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("window", [None, 1, 7, 16, 1000])
@pytest.mark.parametrize(("heads", "kv_heads", "d", "block_size"), [(9, 3, 16, 16), (5, 1, 8, 8)])
def test_attention_equals_one_query_at_a_time(
    mix: Queries, window: int | None, heads: int, kv_heads: int, d: int, block_size: int
) -> None:
    prefix = {"a": 3, "b": 129, "c": 31}
    sequences, meta = step(mix, block_size=block_size, prefix=prefix)
    cache = Cache(sequences, kv_heads, d, torch.float32)
    cache.fill()
    q = torch.randn(sum(n for _, n in mix), heads, d)
    out = ReferenceKernels().paged_attention(
        q, LayerCache(cache.k, cache.v), meta, scale=d**-0.5, window=window
    )
    expected = torch.stack(naive(q, cache, mix, d**-0.5, window))
    torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("window", [None, 16])
def test_a_softcap_bends_large_scores(mix: Queries, window: int | None) -> None:
    sequences, meta = step(mix, block_size=8, prefix={"b": 40})
    cache = Cache(sequences, 2, 16, torch.float32)
    cache.fill()
    q = torch.randn(sum(n for _, n in mix), 6, 16) * 3
    out = ReferenceKernels().paged_attention(
        q, LayerCache(cache.k, cache.v), meta, scale=0.25, window=window, softcap=2.0
    )
    expected = torch.stack(naive(q, cache, mix, 0.25, window, 2.0))
    torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("window", [None, 20])
def test_bfloat16_caches_lose_only_the_rounding_of_the_result(window: int | None) -> None:
    mix = [("a", 1), ("b", 1), ("c", 21)]
    sequences, meta = step(mix, block_size=16, prefix={"a": 100, "c": 13})
    cache = Cache(sequences, 2, 64, torch.bfloat16)
    cache.fill()
    q = torch.randn(23, 4, 64).bfloat16()
    out = ReferenceKernels().paged_attention(
        q, LayerCache(cache.k, cache.v), meta, scale=0.125, window=window
    )
    expected = torch.stack(naive(q, cache, mix, 0.125, window))
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), expected, atol=1e-6, rtol=2**-8)


def test_entries_before_the_window_are_never_read() -> None:
    mix = [("a", 1), ("b", 6)]
    sequences, meta = step(mix, block_size=8, prefix={"a": 90, "b": 70})
    cache = Cache(sequences, 1, 8, torch.float32)
    cache.fill()
    q = torch.randn(7, 2, 8)
    tables = meta.block_tables.clone()
    tables[0, : (91 - 20) // 8] = 0  # block 0 is all NaN
    tables[1, : (70 + 1 - 20) // 8] = 0
    freed = dataclasses.replace(meta, block_tables=tables)
    whole = ReferenceKernels().paged_attention(
        q, LayerCache(cache.k, cache.v), meta, scale=1.0, window=20
    )
    assert torch.equal(
        ReferenceKernels().paged_attention(
            q, LayerCache(cache.k, cache.v), freed, scale=1.0, window=20
        ),
        whole,
    )


def test_a_decode_row_does_not_depend_on_its_batch() -> None:
    prefix = dict(zip("abcdefgh", (700, 3, 44, 45, 300, 16, 1, 129), strict=True))
    sequences, meta = step([(n, 1) for n in prefix], block_size=16, prefix=prefix)
    cache = Cache(sequences, 3, 64, torch.float32)
    cache.fill()
    q = torch.randn(8, 9, 64)
    together = ReferenceKernels().paged_attention(
        q, LayerCache(cache.k, cache.v), meta, scale=0.125
    )
    for i in range(8):
        alone = dataclasses.replace(
            meta,
            query_starts=torch.tensor([0, 1], dtype=torch.int32),
            context_lens=meta.context_lens[i : i + 1],
            block_tables=meta.block_tables[i : i + 1],
            num_decode=1,
        )
        row = ReferenceKernels().paged_attention(
            q[i : i + 1], LayerCache(cache.k, cache.v), alone, scale=0.125
        )
        torch.testing.assert_close(row[0], together[i], atol=1e-6, rtol=1e-5)


def test_a_plan_serves_one_batch_only() -> None:
    kernels = ReferenceKernels()
    sequences = PagedSequences(num_blocks=50, block_size=8)
    sequences.step([("a", 10)])
    for mix in ([("a", 1)], [("a", 1)], [("a", 9)]):
        _, meta = sequences.step(mix)
        cache = Cache(sequences, 1, 8, torch.float32)
        cache.fill()
        q = torch.randn(mix[0][1], 2, 8)
        out = kernels.paged_attention(q, LayerCache(cache.k, cache.v), meta, scale=1.0)
        expected = torch.stack(naive(q, cache, mix, 1.0, None))
        torch.testing.assert_close(out.double(), expected, atol=1e-5, rtol=1e-5)


@given(st.lists(st.integers(1, 8192), max_size=60))
@settings(deadline=None)
def test_buckets_hold_every_row_once_and_waste_little(lengths: list[int]) -> None:
    buckets = bucket_rows(lengths)
    assert sorted(row for bucket in buckets for row in bucket) == list(range(len(lengths)))
    for bucket in buckets:
        longest = max(lengths[row] for row in bucket)
        assert sum(longest - lengths[row] for row in bucket) <= BUCKET_COST_TOKENS
        assert len(bucket) == 1 or len(bucket) * longest <= BUCKET_MAX_TOKENS


def test_one_long_context_does_not_lengthen_the_short_ones() -> None:
    assert bucket_rows([20, 8000, 24, 30]) == [[1], [3, 2, 0]]
