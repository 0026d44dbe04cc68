"""A row's largest output through its screen: the same as among all outputs, bit for bit."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tandem_kernels import QuantizedWeight
from tandem_kernels.cpu.build import Builder
from tandem_kernels.cpu.isa import LEVELS, cpu_features
from tandem_kernels.cpu.library import load_library
from tandem_kernels.cpu.linear import CpuLinear, LinearPacker
from tandem_kernels.cpu.linear_screen import LinearScreen, screen_of
from torch import Tensor

RUNNABLE = [level.name for level in LEVELS if level.features <= cpu_features()]
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(scope="module", params=RUNNABLE)
def library(request: pytest.FixtureRequest) -> Iterator[ctypes.CDLL]:
    library = load_library(Builder.of_this_machine(request.param))
    assert library is not None
    before = library.tandem_num_threads()
    torch.set_num_threads(1)
    yield library
    library.tandem_set_num_threads(before)


def random_head(shape: tuple[int, int], seed: int = 0) -> QuantizedWeight:
    """Columns of very different lengths, as those of vocabularies are."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-127, 128, shape, generator=generator, dtype=torch.int8)
    scales = torch.rand(shape[0], 1, generator=generator) ** 3 / 100 + 1e-4
    return QuantizedWeight("int8", values, scales, None, shape[1])


def packed(
    library: ctypes.CDLL, weight: QuantizedWeight, dtype: torch.dtype = torch.bfloat16
) -> tuple[CpuLinear, LinearScreen]:
    linear = LinearPacker(library, dtype).pack(weight, None, out_dtype=torch.float32)
    screen = screen_of(library, linear)
    assert screen is not None
    return linear, screen


def assert_same_largest(found: Tensor, every: Tensor) -> None:
    largest = every.amax(-1, keepdim=True)
    is_largest = every == largest
    assert torch.equal(found[is_largest], every[is_largest])
    assert bool((found[~is_largest] < largest.expand_as(every)[~is_largest]).all())


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_the_largest_output_is_exact_and_all_others_lie_below(
    library: ctypes.CDLL, data: st.DataObject
) -> None:
    shape = (data.draw(st.integers(1, 300), "out"), data.draw(st.integers(1, 700), "in"))
    dtype = data.draw(st.sampled_from(DTYPES), "dtype")
    seed = data.draw(st.integers(0, 1000), "seed")
    linear, screen = packed(library, random_head(shape, seed), dtype)
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(data.draw(st.integers(1, 80), "rows"), shape[1], generator=generator)
    if data.draw(st.booleans(), "outliers"):
        x[:, :: data.draw(st.integers(1, 99), "every")] *= 50
    x = x.to(dtype)
    library.tandem_set_num_threads(data.draw(st.integers(1, 4), "threads"))
    assert_same_largest(screen.largest(x), linear(x))


def test_all_that_equal_the_largest_are_exact(library: ctypes.CDLL) -> None:
    weight = random_head((200, 96))
    for column in (3, 40, 41, 199):
        weight.values[column] = 100
        weight.scales[column] = 1.0
    linear, screen = packed(library, weight)
    x = torch.rand(9, 96).to(torch.bfloat16)
    every, found = linear(x), screen.largest(x)
    assert (found == found.amax(-1, keepdim=True)).sum(-1).tolist() == [4] * 9
    assert_same_largest(found, every)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("num_rows", [4, 33, 100])
def test_the_first_of_the_largest_is_that_of_all_outputs(
    library: ctypes.CDLL, num_rows: int, threads: int
) -> None:
    weight = random_head((4_096, 64))
    weight.values[2_048:] = weight.values[:2_048]
    weight.scales[2_048:] = weight.scales[:2_048]
    linear, screen = packed(library, weight)
    x = torch.randn(num_rows, 64).to(torch.bfloat16)
    library.tandem_set_num_threads(threads)
    every, found = linear(x), screen.largest(x)
    assert_same_largest(found, every)
    assert torch.equal(found.argmax(-1), every.argmax(-1))
    assert bool((found == found.amax(-1, keepdim=True)).sum(-1).ge(2).all())


def test_margins_smaller_than_rounding_to_bytes_are_told_apart(library: ctypes.CDLL) -> None:
    weight = random_head((640, 576))
    weight.values[:] = weight.values[0]
    weight.values[:, 7] = torch.randint(-127, 128, (640,), dtype=torch.int8)
    weight.scales[:] = 0.01
    linear, screen = packed(library, weight, torch.float32)
    x = torch.randn(12, 576)
    assert_same_largest(screen.largest(x), linear(x))


def test_rows_of_zeros_and_of_what_is_not_finite_are_as_ever(library: ctypes.CDLL) -> None:
    linear, screen = packed(library, random_head((100, 64)))
    x = torch.randn(8, 64).to(torch.bfloat16)
    x[1] = 0
    x[3, 5], x[4, 6] = float("nan"), float("inf")
    found, every = screen.largest(x), linear(x)
    assert torch.equal(found[1], every[1])
    assert not bool(found[3:5].isfinite().any())
    fine = [0, 2, 5, 6, 7]
    assert_same_largest(found[fine], every[fine])


def test_few_outputs_of_a_large_head_are_computed_in_full(library: ctypes.CDLL) -> None:
    linear, screen = packed(library, random_head((4_000, 576)))
    x = torch.randn(8, 576).to(torch.bfloat16)
    assert float((screen.largest(x) == linear(x)).float().mean()) < 0.5


@pytest.mark.parametrize(
    "weight",
    [
        QuantizedWeight("w8a8", torch.ones(64, 64, dtype=torch.int8), torch.ones(64, 1), None, 64),
        QuantizedWeight("int8", torch.ones(64, 64, dtype=torch.int8), torch.ones(64, 2), None, 32),
    ],
    ids=["8-bit activations", "groups"],
)
def test_other_linears_have_no_screen(library: ctypes.CDLL, weight: QuantizedWeight) -> None:
    linear = LinearPacker(library, torch.float32).pack(weight, None, out_dtype=torch.float32)
    assert screen_of(library, linear) is None
