"""The same sources for CPUs with less than this one has: they compile, and keep every promise."""

from __future__ import annotations

import ctypes
import dataclasses

import pytest
import torch
from fakes_paged_batch import PagedSequences
from tandem_kernels import LayerCache
from tandem_kernels.cpu.build import Builder
from tandem_kernels.cpu.isa import LEVELS, choose_isa, cpu_features
from tandem_kernels.cpu.kernels import CpuKernels
from tandem_kernels.cpu.library import load_library
from tandem_kernels.reference import ReferenceKernels

from core.kv_spec import KVGroup, KVSpec
from kv_cache.storage import KVStorage

FASTEST = choose_isa(cpu_features())
SLOWER = [level.name for level in LEVELS[LEVELS.index(FASTEST) + 1 :]]
TWIN = ReferenceKernels()


@pytest.fixture(scope="module", params=SLOWER)
def library(request: pytest.FixtureRequest) -> ctypes.CDLL:
    library = load_library(Builder.of_this_machine(request.param))
    assert library is not None
    return library


@pytest.fixture(params=[torch.float32, torch.bfloat16])
def kernels(library: ctypes.CDLL, request: pytest.FixtureRequest) -> CpuKernels:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    return CpuKernels(library, request.param)


def assert_close(out: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = 3e-6 if out.dtype == torch.float32 else 2**-7
    torch.testing.assert_close(out.float(), expected, atol=tolerance, rtol=tolerance)


def test_rows_equal_their_twins(kernels: CpuKernels) -> None:
    x, weight = torch.randn(3, 100).to(kernels.dtype), torch.randn(100).to(kernels.dtype)
    normed = TWIN.rms_norm(x.float(), weight.float(), 1e-5)
    assert_close(kernels.rms_norm(x, weight, 1e-5), normed)
    assert_close(
        kernels.activate(x * 5, "silu", gated=True),
        TWIN.activate((x * 5).float(), "silu", gated=True),
    )
    rows = torch.randn(4, 100).to(kernels.dtype)
    matrix = torch.randn(30, 100).to(kernels.dtype)
    product = kernels.pack_linear(matrix, None)(rows)
    torch.testing.assert_close(
        product.float(), rows.float() @ matrix.float().T, atol=2e-2, rtol=2**-7
    )


@pytest.mark.parametrize(("d", "window"), [(64, None), (20, 77)])
def test_attention_equals_its_twin_and_itself_cut(
    kernels: CpuKernels, d: int, window: int | None
) -> None:
    sequences = PagedSequences(num_blocks=100, block_size=16)
    sequences.step([("a", 300)])
    _, meta = sequences.step([("a", 1), ("b", 290)])
    k, v = torch.randn(2, 100, 2, 16, d).to(kernels.dtype)
    q = torch.randn(291, 6, d).to(kernels.dtype)
    out = kernels.paged_attention(q, LayerCache(k, v), meta, scale=d**-0.5, window=window)
    exact = LayerCache(k.float(), v.float())
    twin = TWIN.paged_attention(q.float(), exact, meta, scale=d**-0.5, window=window)
    assert_close(out, twin)
    last = dataclasses.replace(
        meta,
        query_starts=torch.tensor([0, 7], dtype=torch.int32),
        context_lens=meta.context_lens[1:],
        block_tables=meta.block_tables[1:],
        num_decode=0,
    )
    again = kernels.paged_attention(q[-7:], LayerCache(k, v), last, scale=d**-0.5, window=window)
    assert torch.equal(again, out[-7:])


@pytest.mark.parametrize("cache_type", ["int8", "fp8"])
def test_quantised_rows_equal_their_twins(kernels: CpuKernels, cache_type: str) -> None:
    spec = KVSpec((KVGroup(num_layers=1, num_kv_heads=3, head_dim=20),), 8, cache_type)
    ours, twins = KVStorage(spec, 9), KVStorage(spec, 9)
    k, v = torch.randn(2, 50, 3, 20).to(kernels.dtype)
    slots = torch.randperm(72)[:50]
    kernels.write_kv(k, v, ours.layer(0), slots)
    TWIN.write_kv(k, v, twins.layer(0), slots)
    assert torch.equal(ours.pack(range(9)), twins.pack(range(9)))


@pytest.mark.parametrize("cache_type", ["int8", "fp8"])
def test_attention_over_quantised_rows_equals_its_twin(
    kernels: CpuKernels, cache_type: str
) -> None:
    sequences = PagedSequences(num_blocks=40, block_size=16)
    sequences.step([("a", 300)])
    _, meta = sequences.step([("a", 1), ("b", 90)])
    spec = KVSpec((KVGroup(num_layers=1, num_kv_heads=2, head_dim=20),), 16, cache_type)
    cache = KVStorage(spec, 40).layer(0)
    k, v = torch.randn(2, 640, 2, 20)
    TWIN.write_kv(k, v, cache, torch.arange(640))
    q = torch.randn(91, 6, 20).to(kernels.dtype)
    out = kernels.paged_attention(q, cache, meta, scale=20**-0.5)
    assert_close(out, TWIN.paged_attention(q.float(), cache, meta, scale=20**-0.5))
