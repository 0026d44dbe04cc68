"""What caches of every type hold after a write: C++ against its torch twin, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from fakes_cpu_kernels import cpu_kernels, kernel_threads
from fakes_paged_batch import PagedSequences
from hypothesis import given, settings
from hypothesis import strategies as st
from tandem_kernels import LayerCache
from tandem_kernels.reference import ReferenceKernels
from tandem_kernels.reference_kv_cache import LARGEST, dequantize, quantize_rows
from torch import Tensor

from core.kv_spec import KVGroup, KVSpec
from kv_cache.storage import KVStorage

TWIN = ReferenceKernels()
DTYPES = [torch.float32, torch.bfloat16]
QUANTIZED = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
TYPES = ["float32", "bfloat16", "int8", "fp8"]
SIZES = [(3, 64), (1, 5), (4, 80), (2, 16), (1, 256), (2, 100)]
NUM_BLOCKS = 40


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with kernel_threads(1):
        yield


class Cache:
    """A storage of one layer."""

    def __init__(self, cache_type: str, kv_heads: int, d: int, block_size: int = 16) -> None:
        spec = KVSpec((KVGroup(1, kv_heads, d),), block_size, cache_type)
        self._storage = KVStorage(spec, NUM_BLOCKS)
        self.layer: LayerCache = self._storage.layer(0)

    def bits(self) -> Tensor:
        return self._storage.pack(range(NUM_BLOCKS))


def rows(num_tokens: int, heads: int, d: int, dtype: torch.dtype) -> Tensor:
    """Rows of very different sizes, as a view of wider ones."""
    wide = torch.randn(num_tokens, heads + 2, d) * torch.randn(num_tokens, heads + 2, 1).exp() ** 3
    return wide.to(dtype)[:, 1:-1]


def stored(row: Tensor, cache_type: str) -> tuple[Tensor, Tensor]:
    """What C++ makes of one row [d]: its values, and its scale."""
    cache = Cache(cache_type, 1, len(row), 8)
    k = row.view(1, 1, -1)
    cpu_kernels(row.dtype).write_kv(k, k, cache.layer, torch.tensor([11]))
    assert cache.layer.k_scales is not None and cache.layer.v_scales is not None
    assert torch.equal(cache.layer.k.view(torch.uint8), cache.layer.v.view(torch.uint8))
    assert torch.equal(cache.layer.k_scales, cache.layer.v_scales)
    return cache.layer.k[1, 0, 3], cache.layer.k_scales[1, 0, 3]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache_type", TYPES)
@pytest.mark.parametrize(("heads", "d"), SIZES)
def test_written_rows_are_the_twins(
    heads: int, d: int, cache_type: str, dtype: torch.dtype
) -> None:
    ours, twins = Cache(cache_type, heads, d), Cache(cache_type, heads, d)
    k, v = rows(77, heads, d, dtype), rows(77, heads, d, dtype)
    k[5], v[6] = 0, 0
    slots = torch.randperm(16 * NUM_BLOCKS)[:77]
    cpu_kernels(dtype).write_kv(k, v, ours.layer, slots)
    TWIN.write_kv(k, v, twins.layer, slots)
    assert torch.equal(ours.bits(), twins.bits())


def every_fp8_and_what_lies_between() -> Tensor:
    """All 127 magnitudes, the ties between them, and the float32 next to each tie."""
    magnitudes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    ties = (magnitudes[1:] + magnitudes[:-1]) / 2
    infinity = torch.tensor(torch.inf)
    around = [ties, ties.nextafter(infinity), ties.nextafter(-infinity)]
    return torch.cat((magnitudes, *around, torch.rand(1000) * 448, torch.rand(500) * 2**-6))


def test_fp8_rounds_as_torch_does() -> None:
    magnitudes = every_fp8_and_what_lies_between()
    row = torch.cat((magnitudes, -magnitudes))
    for part in torch.tensor_split(row, len(row) // 500):
        part = torch.cat((part, torch.tensor([448.0])))
        values, scale = stored(part, "fp8")
        assert scale == 1
        assert torch.equal(values.view(torch.uint8), part.to(torch.float8_e4m3fn).view(torch.uint8))


def test_int8_rounds_to_the_nearest_and_ties_to_even() -> None:
    row = torch.cat((torch.arange(-126.5, 127, 0.5), torch.rand(100) * 254 - 127))
    row = torch.cat((row, torch.tensor([-127.0])))
    values, scale = stored(row, "int8")
    assert scale == 1
    assert torch.equal(values, row.round().to(torch.int8))


@pytest.mark.parametrize("size", [1e-44, 1e-38, 1e-30, 1e-3, 1.0, 1e30, 3e38])
@pytest.mark.parametrize("cache_type", QUANTIZED)
def test_nothing_clips_and_nothing_overflows(cache_type: str, size: float) -> None:
    row = torch.cat((torch.rand(1000) * 2 - 1, torch.tensor([1.0, -1.0, 0.0]))) * size
    values, scale = stored(row, cache_type)
    dtype = QUANTIZED[cache_type]
    expected, expected_scale = quantize_rows(row, dtype)
    assert torch.equal(values.view(torch.uint8), expected.view(torch.uint8))
    assert torch.equal(scale, expected_scale)
    assert scale.float() * LARGEST[dtype] >= row.abs().max()
    if size > 1e-30:  # a scale is a normal number, so smaller rows become coarse
        assert scale.float() * LARGEST[dtype] <= row.abs().max() * (1 + 2**-7)
    step = scale.float() * (1 if dtype == torch.int8 else 2**-9)
    tolerance = step / 2 if dtype == torch.int8 else torch.maximum(row.abs() * 2**-4, step / 2)
    assert ((dequantize(values, scale) - row).abs() <= tolerance * 1.0001).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("cache_type", TYPES)
@pytest.mark.parametrize("rotary_dim", [64, 32, 20, 2])
def test_rotating_on_the_way_gives_the_bits_of_rotating_first(
    rotary_dim: int, cache_type: str, dtype: torch.dtype
) -> None:
    kernels, once, apart = cpu_kernels(dtype), Cache(cache_type, 3, 64), Cache(cache_type, 3, 64)
    q, k, v = (torch.randn(50, heads, 64).to(dtype) for heads in (9, 3, 3))
    turn = torch.rand(50, rotary_dim // 2) * 6
    table, positions = torch.cat((turn.cos(), turn.sin()), 1), torch.randint(0, 50, (50,))
    slots = torch.randperm(16 * NUM_BLOCKS)[:50]
    q_first, k_first = kernels.rope(q.clone(), k.clone(), positions, table)
    kernels.write_kv(k_first, v, apart.layer, slots)
    q_once = kernels.rope_write_kv(q.clone(), k, v, positions, table, once.layer, slots)
    assert torch.equal(q_once, q_first)
    assert torch.equal(once.bits(), apart.bits())
    assert torch.equal(q_first[..., rotary_dim:], q[..., rotary_dim:])
    q_twin, k_twin = TWIN.rope(q.float(), k.float(), positions, table)
    tolerance = 2e-6 if dtype == torch.float32 else 2**-8
    for ours, twins in ((q_first, q_twin), (k_first, k_twin)):
        torch.testing.assert_close(ours.float(), twins, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("cache_type", TYPES)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=8), st.integers(1, 3))
@settings(deadline=None, max_examples=10)
def test_a_row_has_the_same_bits_in_any_batch_on_any_thread(
    cache_type: str, chunks: list[int], num_threads: int
) -> None:
    kernels = cpu_kernels(torch.bfloat16)
    whole, parts = Cache(cache_type, 3, 64), Cache(cache_type, 3, 64)
    num_tokens = sum(chunks)
    q, k, v = (rows(num_tokens, heads, 64, torch.bfloat16) for heads in (9, 3, 3))
    turn = torch.rand(num_tokens, 32) * 6
    table, positions = torch.cat((turn.cos(), turn.sin()), 1), torch.arange(num_tokens)
    slots = torch.randperm(16 * NUM_BLOCKS)[:num_tokens]
    with kernel_threads(num_threads):
        kernels.rope_write_kv(q.clone(), k, v, positions, table, whole.layer, slots)
    start = 0
    for size in chunks:
        some = slice(start, start + size)
        turned = (q[some].clone(), k[some], v[some], positions[some])
        kernels.rope_write_kv(*turned, table, parts.layer, slots[some])
        start += size
    assert torch.equal(whole.bits(), parts.bits())


@pytest.mark.parametrize("window", [None, 21])
@pytest.mark.parametrize("cache_type", QUANTIZED)
def test_reference_attention_reads_what_the_values_and_scales_mean(
    cache_type: str, window: int | None
) -> None:
    cache = Cache(cache_type, 2, 16)
    sequences = PagedSequences(num_blocks=NUM_BLOCKS, block_size=16)
    sequences.step([("a", 70), ("b", 100)])
    _, meta = sequences.step([("a", 1), ("b", 9), ("c", 33)])
    slots = torch.arange(16 * NUM_BLOCKS)
    k, v = rows(len(slots), 2, 16, torch.float32), rows(len(slots), 2, 16, torch.float32)
    TWIN.write_kv(k, v, cache.layer, slots)
    layer = cache.layer
    plain = LayerCache(dequantize(layer.k, layer.k_scales), dequantize(layer.v, layer.v_scales))
    q = torch.randn(43, 6, 16)
    out = TWIN.paged_attention(q, layer, meta, scale=0.25, window=window)
    expected = ReferenceKernels().paged_attention(q, plain, meta, scale=0.25, window=window)
    assert torch.equal(out, expected)


def test_a_cache_forgets_its_struct_when_it_goes() -> None:
    """The struct points into memory that is gone then."""
    kernels, cache = cpu_kernels(torch.float32), Cache("int8", 1, 8)
    row, slot = torch.randn(1, 1, 8), torch.tensor([0])
    kernels.write_kv(row, row, cache.layer, slot)
    structs = kernels._caches._structs
    assert len(structs) == 1
    del cache
    assert len(structs) == 0
