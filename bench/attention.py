"""What attention alone reaches on this CPU, against the limits measured in the same process."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from tandem_kernels import AttentionMeta, LayerCache
from tandem_kernels.cpu.attention import PagedAttention
from tandem_kernels.cpu.layer_cache import CacheStructs
from tandem_kernels.host_memory import lazy_zeros

_BLOCK_SIZE = 16
_READ_BYTES = 256 * 1024 * 1024
"""Far beyond any cache."""
_COLD_BYTES = 96 * 1024 * 1024
"""Decode walks over so much KV before it meets the same again, so that no cache serves it."""
_ROUNDS = 1_000_000
"""Of the loop that does nothing but multiply: some milliseconds."""
_BUDGET_S = 1.0
_MAX_REPEATS = 20


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Heads of one layer."""

    num_heads: int = 9
    num_kv_heads: int = 3
    head_dim: int = 64


@dataclass(frozen=True, slots=True)
class AttentionCase:
    """One measurement. Its limit is reading in decode, multiplying in prefill."""

    kind: str
    """`decode` or `prefill`."""
    cache_type: str
    batch: int
    context: int
    chunk: int
    """Query tokens of a call."""
    seconds: float
    gigabytes_per_s: float
    gigaflops: float
    """Causal half only."""
    share: float


@dataclass(frozen=True, slots=True)
class AttentionReport:
    """Limits of the threads used, and what was reached."""

    num_threads: int
    read_gigabytes_per_s: float
    gigaflops: float
    cases: tuple[AttentionCase, ...]


class AttentionBench:
    """Measures one shape with one cache type on `num_threads` threads of the compiled kernels."""

    def __init__(self, library: ctypes.CDLL, shape: AttentionShape, num_threads: int) -> None:
        library.tandem_set_num_threads(num_threads)
        library.tandem_peak_operations.argtypes = [ctypes.c_int32, ctypes.c_int64]
        library.tandem_peak_operations.restype = ctypes.c_int64
        library.tandem_peak_read.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        library.tandem_peak_read.restype = None
        self._library = library
        self._shape = shape
        self._num_threads = num_threads
        memory = lazy_zeros(_READ_BYTES).fill_(1)
        read_s = _fastest(lambda: library.tandem_peak_read(memory.data_ptr(), _READ_BYTES))
        self._read = _READ_BYTES / read_s / 1e9
        self._flops = {0: self._peak(0), 1: self._peak(1)}

    def report(self, cases: Sequence[AttentionCase]) -> AttentionReport:
        """`cases` beside the limits they were held against."""
        return AttentionReport(self._num_threads, self._read, self._flops[1], tuple(cases))

    def decode(self, cache_type: torch.dtype, batch: int, context: int) -> AttentionCase:
        """One token of each of `batch` sequences."""
        caches = self._caches(cache_type, batch * context)
        meta = _meta([context] * batch, 1)
        attend, q = self._call(cache_type, batch)

        def run() -> None:
            for cache in caches:
                attend(q, cache, meta)

        seconds = _fastest(run) / len(caches)
        shape = self._shape
        row_bytes = shape.head_dim * cache_type.itemsize + (2 if cache_type.itemsize == 1 else 0)
        read = 2 * batch * context * shape.num_kv_heads * row_bytes / seconds / 1e9
        flops = 4 * batch * context * shape.num_heads * shape.head_dim / seconds / 1e9
        name = str(cache_type).removeprefix("torch.")
        return AttentionCase(
            "decode", name, batch, context, 1, seconds, read, flops, read / self._read
        )

    def prefill(self, cache_type: torch.dtype, prompt: int, chunk: int) -> AttentionCase:
        """A prompt of `prompt` tokens in chunks."""
        (cache,) = self._caches(cache_type, prompt, cold=False)
        metas = [_meta([end], chunk) for end in range(chunk, prompt + 1, chunk)]
        attend, q = self._call(cache_type, chunk)

        def run() -> None:
            for meta in metas:
                attend(q, cache, meta)

        seconds = _fastest(run)
        shape = self._shape
        pairs = prompt * (prompt + 1) / 2
        flops = 4 * pairs * shape.num_heads * shape.head_dim / seconds / 1e9
        limit = self._flops[0 if cache_type == torch.float32 else 1]
        name = str(cache_type).removeprefix("torch.")
        return AttentionCase("prefill", name, 1, prompt, chunk, seconds, 0.0, flops, flops / limit)

    def _peak(self, loop: int) -> float:
        peak = self._library.tandem_peak_operations
        operations: int = peak(loop, _ROUNDS)
        return operations / _fastest(lambda: peak(loop, _ROUNDS)) / 1e9

    def _call(
        self, cache_type: torch.dtype, num_tokens: int
    ) -> tuple[Callable[[torch.Tensor, LayerCache, AttentionMeta], None], torch.Tensor]:
        """Attention as a layer calls it, and queries for it."""
        shape = self._shape
        dtype = torch.float32 if cache_type == torch.float32 else torch.bfloat16
        attention = PagedAttention(self._library, dtype, CacheStructs())
        scale = shape.head_dim**-0.5

        def attend(q: torch.Tensor, cache: LayerCache, meta: AttentionMeta) -> None:
            attention.attend(q, cache, meta, scale=scale, window=None, softcap=0.0)

        return attend, torch.randn(num_tokens, shape.num_heads, shape.head_dim).to(dtype)

    def _caches(
        self, cache_type: torch.dtype, num_tokens: int, *, cold: bool = True
    ) -> list[LayerCache]:
        """Caches of so many tokens each, in huge pages; enough of them to be cold."""
        shape = self._shape
        num_blocks = num_tokens // _BLOCK_SIZE + 1
        size = (num_blocks, shape.num_kv_heads, _BLOCK_SIZE, shape.head_dim)
        bytes_each = 2 * num_tokens * shape.num_kv_heads * shape.head_dim * cache_type.itemsize
        number = _COLD_BYTES // bytes_each + 1 if cold else 1
        return [_random_cache(size, cache_type) for _ in range(number)]


def _random_cache(size: tuple[int, int, int, int], cache_type: torch.dtype) -> LayerCache:
    def values() -> torch.Tensor:
        x = torch.randn(size)
        quantised = (
            (x * 20).round().to(torch.int8) if cache_type == torch.int8 else x.to(cache_type)
        )
        memory = lazy_zeros(x.numel() * cache_type.itemsize).view(cache_type).view(size)
        return memory.copy_(quantised)

    k, v = values(), values()
    if cache_type.itemsize > 1:
        return LayerCache(k, v)
    scales = torch.full(size[:3], 0.05, dtype=torch.bfloat16)
    return LayerCache(k, v, scales, scales.clone())


def _meta(contexts: Sequence[int], num_queries: int) -> AttentionMeta:
    """Sequences of as many query tokens, their blocks scattered over the cache."""
    blocks = [-(-context // _BLOCK_SIZE) for context in contexts]
    order = torch.randperm(sum(blocks), generator=torch.Generator().manual_seed(0))
    tables = torch.zeros((len(contexts), max(blocks)), dtype=torch.int32)
    for row, taken in enumerate(torch.split(order.to(torch.int32), blocks)):
        tables[row, : len(taken)] = taken
    num_tokens = len(contexts) * num_queries
    return AttentionMeta(
        query_starts=torch.arange(0, num_tokens + 1, num_queries, dtype=torch.int32),
        context_lens=torch.tensor(contexts, dtype=torch.int32),
        block_tables=tables,
        slot_mapping=torch.zeros(num_tokens, dtype=torch.int64),
        num_decode=len(contexts) if num_queries == 1 else 0,
        max_context_len=max(contexts),
    )


def _fastest(work: Callable[[], object]) -> float:
    """Seconds of the fastest of some runs, after one to warm up."""
    work()
    times: list[float] = []
    while len(times) < _MAX_REPEATS and sum(times) < _BUDGET_S:
        started_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - started_s)
    return min(times)
