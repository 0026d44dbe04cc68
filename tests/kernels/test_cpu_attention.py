"""C++ attention against its torch twin, and the promise that bits depend on nothing but the row."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from fakes_cpu_kernels import cpu_kernels, kernel_threads
from fakes_paged_batch import PagedSequences
from hypothesis import given, settings
from hypothesis import strategies as st
from tandem_kernels import AttentionMeta, LayerCache
from tandem_kernels.reference import ReferenceKernels
from torch import Tensor

DTYPES = [torch.float32, torch.bfloat16]
Queries = list[tuple[str, int]]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with kernel_threads(1):
        yield


@dataclass(frozen=True)
class Shape:
    heads: int
    kv_heads: int
    d: int
    block_size: int
    window: int | None = None
    softcap: float = 0.0


class Cache:
    """K and V of one layer; NaN in every slot that no token has: a stray read shows."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        num_blocks = 8192 // shape.block_size
        self.shape, self.dtype = shape, dtype
        self.sequences = PagedSequences(num_blocks=num_blocks, block_size=shape.block_size)
        size = (num_blocks, shape.kv_heads, shape.block_size, shape.d)
        self.k = torch.full(size, float("nan"), dtype=dtype)
        self.v = torch.full(size, float("nan"), dtype=dtype)

    def step(self, queries: Queries) -> AttentionMeta:
        """Adds tokens of random KV to sequences."""
        before = {name: self.sequences.lengths.get(name, 0) for name, _ in queries}
        _, meta = self.sequences.step(queries)
        for name, num_tokens in queries:
            slots = torch.tensor(self.sequences.slots(name)[before[name] :])
            where = (slots // self.shape.block_size, slots % self.shape.block_size)
            kv = (2, num_tokens, self.shape.kv_heads, self.shape.d)
            self.k.permute(0, 2, 1, 3)[where], self.v.permute(0, 2, 1, 3)[where] = torch.randn(
                kv, dtype=torch.float32
            ).to(self.dtype)
        return meta

    def queries(self, num_tokens: int) -> Tensor:
        """Random queries, a view of wider rows as those of a QKV product are."""
        width = self.shape.heads + 2 * self.shape.kv_heads
        return torch.randn(num_tokens, width, self.shape.d).to(self.dtype)[:, : self.shape.heads]

    def attend(self, q: Tensor, meta: AttentionMeta) -> Tensor:
        return cpu_kernels(self.dtype).paged_attention(
            q,
            LayerCache(self.k, self.v),
            meta,
            scale=self.shape.d**-0.5,
            window=self.shape.window,
            softcap=self.shape.softcap,
        )

    def twin(self, q: Tensor, meta: AttentionMeta) -> Tensor:
        k, v = self.k.float().nan_to_num(), self.v.float().nan_to_num()
        q = q.float().contiguous()
        return ReferenceKernels().paged_attention(
            q,
            LayerCache(k, v),
            meta,
            scale=self.shape.d**-0.5,
            window=self.shape.window,
            softcap=self.shape.softcap,
        )


def assert_close(out: Tensor, expected: Tensor) -> None:
    """bfloat16 rounds the result and each weight of the softmax."""
    tolerance = 3e-6 if out.dtype == torch.float32 else 2**-7
    torch.testing.assert_close(out.float(), expected, atol=tolerance, rtol=tolerance)


SHAPES = [
    Shape(9, 3, 64, 16),
    Shape(9, 3, 64, 16, window=100),
    Shape(4, 4, 80, 8),
    Shape(8, 2, 128, 128, window=7),
    Shape(7, 1, 96, 32),
    Shape(5, 1, 8, 8, window=1),
    Shape(6, 2, 64, 16, window=50, softcap=1.5),
    Shape(3, 3, 5, 8),
    Shape(1, 1, 256, 64, window=300),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_attention_equals_its_twin(shape: Shape, dtype: torch.dtype) -> None:
    cache = Cache(shape, dtype)
    cache.step([("a", 3), ("b", 700), ("c", 31), ("d", 255), ("e", 256), ("f", 1000)])
    meta = cache.step([("a", 1), ("b", 1), ("d", 1), ("c", 17), ("e", 300), ("f", 40)])
    q = cache.queries(360)
    assert_close(cache.attend(q, meta), cache.twin(q, meta))


lengths = st.integers(1, 600)
shapes = st.builds(
    lambda kv_heads, group, d, block_size, window, softcap: Shape(
        kv_heads * group, kv_heads, d, block_size, window, softcap
    ),
    st.integers(1, 3),
    st.integers(1, 9),
    st.sampled_from([2, 16, 31, 64, 72]),
    st.sampled_from([8, 16, 32, 64, 128]),
    st.none() | st.integers(1, 700),
    st.sampled_from([0.0, 0.0, 2.0]),
)


@given(shapes, st.lists(lengths, min_size=1, max_size=5), st.lists(lengths, max_size=2), st.data())
@settings(deadline=None, max_examples=40)
def test_any_batch_equals_its_twin(
    shape: Shape, decodes: list[int], chunks: list[int], data: st.DataObject
) -> None:
    cache = Cache(shape, data.draw(st.sampled_from(DTYPES)))
    cache.step([(f"d{i}", length) for i, length in enumerate(decodes)])
    prefixes = data.draw(st.lists(lengths, min_size=len(chunks), max_size=len(chunks)))
    cache.step([(f"p{i}", length) for i, length in enumerate(prefixes)]) if chunks else None
    meta = cache.step(
        [(f"d{i}", 1) for i in range(len(decodes))]
        + [(f"p{i}", length + 1) for i, length in enumerate(chunks)]
    )
    q = cache.queries(int(meta.query_starts[-1]))
    assert_close(cache.attend(q, meta), cache.twin(q, meta))


def rows_of(q: Tensor, meta: AttentionMeta, i: int) -> tuple[Tensor, AttentionMeta]:
    """Sequence i of a batch, alone."""
    start, end = int(meta.query_starts[i]), int(meta.query_starts[i + 1])
    alone = dataclasses.replace(
        meta,
        query_starts=torch.tensor([0, end - start], dtype=torch.int32),
        context_lens=meta.context_lens[i : i + 1],
        block_tables=meta.block_tables[i : i + 1],
        num_decode=int(end - start == 1),
    )
    return q[start:end], alone


def last_tokens(q: Tensor, meta: AttentionMeta, cuts: list[int]) -> list[tuple[Tensor, Tensor]]:
    """A batch of one chunk, cut: each piece's queries and what they would have been asked with."""
    context_len, total = int(meta.context_lens[0]), len(q)
    return [
        (q[begin:end], torch.tensor([context_len - total + end], dtype=torch.int32))
        for begin, end in zip([0, *cuts], [*cuts, total], strict=True)
    ]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES[:4])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(shape: Shape, dtype: torch.dtype) -> None:
    cache = Cache(shape, dtype)
    names = "abcdefgh"
    cache.step([(n, 1 + 97 * i**2 % 600) for i, n in enumerate(names)])
    meta = cache.step([(n, 1 if i < 5 else 30 * i) for i, n in enumerate(names)])
    q = cache.queries(int(meta.query_starts[-1]))
    together = cache.attend(q, meta)
    for i in range(len(names)):
        alone, its_meta = rows_of(q, meta, i)
        start = int(meta.query_starts[i])
        assert torch.equal(cache.attend(alone, its_meta), together[start : start + len(alone)])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_prompt_has_the_same_bits_however_it_is_cut(shape: Shape, dtype: torch.dtype) -> None:
    cache = Cache(shape, dtype)
    meta = cache.step([("a", 700)])
    q = cache.queries(700)
    whole = cache.attend(q, meta)
    for cuts in ([256, 512], [1, 2, 3, 255, 300, 699], [16, 17, 257], list(range(600, 700))):
        pieces = [
            cache.attend(
                piece,
                dataclasses.replace(
                    meta,
                    query_starts=torch.tensor([0, len(piece)], dtype=torch.int32),
                    context_lens=context_len,
                    num_decode=int(len(piece) == 1),
                ),
            )
            for piece, context_len in last_tokens(q, meta, cuts)
        ]
        assert torch.equal(torch.cat(pieces), whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_threads", [2, 3, 8])
@pytest.mark.parametrize("num_decode", [1, 3, 7])
@pytest.mark.parametrize("num_chunks", [0, 1, 2])
def test_threads_do_not_show(
    dtype: torch.dtype, num_threads: int, num_decode: int, num_chunks: int
) -> None:
    cache = Cache(Shape(6, 2, 64, 32), dtype)
    decodes = [f"d{i}" for i in range(num_decode)]
    cache.step([(name, 1100 - 150 * i) for i, name in enumerate(decodes)])
    meta = cache.step([(n, 1) for n in decodes] + [(f"p{i}", 333) for i in range(num_chunks)])
    q = cache.queries(int(meta.query_starts[-1]))
    alone = cache.attend(q, meta)
    with kernel_threads(num_threads):
        assert torch.equal(cache.attend(q, meta), alone)


def test_callers_at_once_get_what_each_gets_alone() -> None:
    cache = Cache(Shape(9, 3, 64, 16), torch.bfloat16)
    cache.step([("a", 500), ("b", 900), ("c", 1)])
    meta = cache.step([("a", 1), ("b", 1), ("c", 200)])
    queries = [cache.queries(202) for _ in range(4)]
    expected = [cache.attend(q, meta) for q in queries]
    wrong: list[int] = []

    def attend_often(i: int) -> None:
        if not all(torch.equal(cache.attend(queries[i], meta), expected[i]) for _ in range(20)):
            wrong.append(i)

    callers = [threading.Thread(target=attend_often, args=(i,)) for i in range(len(queries))]
    with kernel_threads(2):
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert not wrong


def test_entries_before_the_window_are_never_read() -> None:
    cache = Cache(Shape(2, 1, 8, 8, window=20), torch.float32)
    cache.step([("a", 90), ("b", 70)])
    meta = cache.step([("a", 1), ("b", 6)])
    tables = meta.block_tables.clone()
    tables[0, : (91 - 20) // 8] = 0  # block 0 is all NaN
    tables[1, : (70 + 1 - 20) // 8] = 0
    q = cache.queries(7)
    freed = dataclasses.replace(meta, block_tables=tables)
    assert torch.equal(cache.attend(q, freed), cache.attend(q, meta))


def test_large_scores_do_not_overflow() -> None:
    cache = Cache(Shape(2, 2, 16, 8), torch.float32)
    cache.step([("a", 400)])
    meta = cache.step([("a", 5)])
    q = cache.queries(5) * 1e4
    assert_close(cache.attend(q, meta), cache.twin(q, meta))
