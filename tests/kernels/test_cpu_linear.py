"""Packed linears against float64, and their promise that a row's bits are its own."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tandem_kernels.cpu.build import Builder
from tandem_kernels.cpu.isa import LEVELS, cpu_features
from tandem_kernels.cpu.library import load_library
from tandem_kernels.cpu.linear import CpuLinear, LinearPacker
from torch import Tensor

RUNNABLE = [level.name for level in LEVELS if level.features <= cpu_features()]
DTYPES = [torch.float32, torch.bfloat16]
# The default model's, then widths that no panel, lane or vector divides
SHAPES = [(960, 576), (576, 1536), (1, 1), (33, 7), (131, 63), (31, 17), (65, 1001)]
BATCHES = [0, 1, 2, 11, 12, 13, 25, 48, 97, 130]


@pytest.fixture(scope="module", params=RUNNABLE)
def library(request: pytest.FixtureRequest) -> Iterator[ctypes.CDLL]:
    library = load_library(Builder.of_this_machine(request.param))
    assert library is not None
    before = library.tandem_num_threads()
    torch.set_num_threads(1)
    yield library
    library.tandem_set_num_threads(before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_bias", [True, False])
def test_results_equal_those_of_float64(
    library: ctypes.CDLL,
    dtype: torch.dtype,
    shape: tuple[int, int],
    has_bias: bool,
) -> None:
    weight, bias = random_layer(shape, dtype)
    linear = LinearPacker(library, dtype).pack(
        weight, bias if has_bias else None, out_dtype=torch.float32
    )
    for num_rows in BATCHES:
        x = torch.randn(num_rows, shape[1]).to(dtype)
        exact = F.linear(x.double(), weight.double(), bias.double() if has_bias else None)
        # One float32 sum of `in` products of size 1: its rounding errors add up
        tolerance = 1e-6 + 2e-7 * shape[1]
        torch.testing.assert_close(linear(x).double(), exact, atol=tolerance, rtol=1e-6)


def test_bfloat16_results_are_the_float32_sums_rounded_once(library: ctypes.CDLL) -> None:
    weight, bias = random_layer((131, 63), torch.bfloat16)
    packer = LinearPacker(library, torch.bfloat16)
    x = torch.randn(29, 63).bfloat16()
    x[3] = float("nan")
    x[4, 0], x[5, 0] = float("inf"), 1e38  # rows whose sums overflow
    sums = packer.pack(weight, bias, out_dtype=torch.float32)(x)
    rounded = packer.pack(weight, bias)(x)
    torch.testing.assert_close(rounded, sums.bfloat16(), atol=0, rtol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_row_has_the_same_bits_in_any_batch_on_any_threads(
    library: ctypes.CDLL, dtype: torch.dtype, data: st.DataObject
) -> None:
    shape = (data.draw(st.integers(1, 200), "out"), data.draw(st.integers(1, 300), "in"))
    linear = packed(library, shape, dtype)
    x = torch.randn(data.draw(st.integers(1, 260), "rows"), shape[1]).to(dtype)
    library.tandem_set_num_threads(1)
    alone = torch.cat([linear(x[i : i + 1]) for i in range(len(x))])
    library.tandem_set_num_threads(data.draw(st.integers(1, 4), "threads"))
    start = data.draw(st.integers(0, len(x) - 1), "start")
    end = data.draw(st.integers(start + 1, len(x)), "end")
    assert torch.equal(linear(x), alone)
    assert torch.equal(linear(x[start:end]), alone[start:end])


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_model_sized_batch_has_the_bits_of_its_rows(
    library: ctypes.CDLL, dtype: torch.dtype
) -> None:
    linear = packed(library, (960, 576), dtype)
    x = torch.randn(1200, 576).to(dtype)  # several blocks of rows a thread
    library.tandem_set_num_threads(2)
    together = linear(x)
    for i in (0, 1, 599, 600, 863, 864, 1199):
        assert torch.equal(linear(x[i : i + 1])[0], together[i])


def test_rows_may_be_strided(library: ctypes.CDLL) -> None:
    linear = packed(library, (48, 40), torch.float32)
    wide = torch.randn(21, 64)
    assert torch.equal(linear(wide[:, 8:48]), linear(wide[:, 8:48].contiguous()))


def test_a_weight_may_change_or_go_after_packing(library: ctypes.CDLL) -> None:
    weight, bias = random_layer((40, 40), torch.float32)
    linear = LinearPacker(library, torch.float32).pack(weight, bias)
    x = torch.randn(3, 40)
    before = linear(x)
    weight.zero_()
    bias.zero_()
    assert torch.equal(linear(x), before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_the_weight_come_back_as_they_were(
    library: ctypes.CDLL, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    weight, _ = random_layer(shape, dtype)
    linear = LinearPacker(library, dtype).pack(weight, None, out_dtype=torch.float32)
    library.tandem_set_num_threads(2)
    for num_rows in (0, 1, 77):
        indices = torch.randint(shape[0], (num_rows,))
        assert torch.equal(linear.weight_rows(indices), weight[indices])


@pytest.mark.parametrize("index", [-1, 33, 2**40])
def test_a_row_that_the_weight_lacks_is_refused(library: ctypes.CDLL, index: int) -> None:
    linear = packed(library, (33, 7), torch.float32)
    with pytest.raises(IndexError, match="0 .. 32"):
        linear.weight_rows(torch.tensor([3, index]))


def test_layers_of_one_packer_do_not_touch_each_other(library: ctypes.CDLL) -> None:
    packer = LinearPacker(library, torch.bfloat16)
    layers = [random_layer((5 * n, 9 * n), torch.bfloat16) for n in range(1, 9)]
    linears = [packer.pack(*layer) for layer in layers]
    for (weight, bias), linear in zip(layers, linears, strict=True):
        x = torch.randn(4, weight.shape[1]).bfloat16()
        assert torch.equal(linear(x), LinearPacker(library, torch.bfloat16).pack(weight, bias)(x))


def test_concurrent_callers_get_the_bits_of_a_lone_one(library: ctypes.CDLL) -> None:
    linear = packed(library, (576, 576), torch.bfloat16)
    library.tandem_set_num_threads(2)
    batches = [torch.randn(1 + 17 * i, 576).bfloat16() for i in range(16)]
    expected = [linear(x) for x in batches]
    with ThreadPoolExecutor(4) as callers:
        for _ in range(5):
            for result, alone in zip(callers.map(linear, batches), expected, strict=True):
                assert torch.equal(result, alone)


def random_layer(shape: tuple[int, int], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(shape).to(dtype), torch.randn(shape[0]).to(dtype)


def packed(library: ctypes.CDLL, shape: tuple[int, int], dtype: torch.dtype) -> CpuLinear:
    return LinearPacker(library, dtype).pack(*random_layer(shape, dtype))
