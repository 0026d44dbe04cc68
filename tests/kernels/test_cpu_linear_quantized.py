"""Linears on whole numbers against exact arithmetic, and their promise of a row's own bits."""

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
from tandem_kernels.reference_linear import ReferenceQuantizedLinear, dequantized
from torch import Tensor

# Scheme, group size (0: per channel), with offsets
FORMATS = [
    ("int8", 0, False),
    ("int8", 0, True),
    ("int8", 32, False),
    ("int8", 64, True),
    ("int4", 0, True),
    ("int4", 32, False),
    ("int4", 32, True),
    ("int4", 64, True),
    ("int4", 128, True),
    ("w8a8", 0, False),
]
FORMAT_NAMES = [f"{s}-{g or 'channel'}{'-offsets' if o else ''}" for s, g, o in FORMATS]
# Out, in: the default model's, then what no panel, word, unit or vector divides
SHAPES = [(96, 576), (40, 1536), (1, 1), (31, 5), (33, 7), (100, 33), (5, 1001)]
RUNNABLE = [level.name for level in LEVELS if level.features <= cpu_features()]
DTYPES = [torch.float32, torch.bfloat16]
# Rounding of activations, as a share of the largest result: 16 bits, 8 bits a group, 8 bits a row
TOLERANCES = {"int8": 2e-4, "int4": 2e-2, "w8a8": 2e-5}

each_format = pytest.mark.parametrize(
    ("scheme", "group_size", "has_offsets"), FORMATS, ids=FORMAT_NAMES
)
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


@pytest.fixture(scope="module", params=RUNNABLE)
def library(request: pytest.FixtureRequest) -> Iterator[ctypes.CDLL]:
    library = load_library(Builder.of_this_machine(request.param))
    assert library is not None
    before = library.tandem_num_threads()
    torch.set_num_threads(1)
    yield library
    library.tandem_set_num_threads(before)


@each_format
@each_dtype
@pytest.mark.parametrize("half", [True, False], ids=["float16 scales", "float32 scales"])
def test_results_equal_those_of_the_twin(
    library: ctypes.CDLL,
    scheme: str,
    group_size: int,
    has_offsets: bool,
    dtype: torch.dtype,
    half: bool,
) -> None:
    for shape in SHAPES:
        weight = random_weight(scheme, shape, group_size, has_offsets, half=half)
        bias = torch.randn(shape[0])
        twin = ReferenceQuantizedLinear(weight, bias, torch.float32, dtype)
        linear = LinearPacker(library, dtype).pack(weight, bias, out_dtype=torch.float32)
        for num_rows in (0, 1, 13, 40):
            x = torch.randn(num_rows, shape[1]).to(dtype)
            assert_near(linear(x), twin(x), TOLERANCES[scheme])


@each_format
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_a_row_has_the_same_bits_in_any_batch_on_any_threads(
    library: ctypes.CDLL, scheme: str, group_size: int, has_offsets: bool, data: st.DataObject
) -> None:
    shape = (data.draw(st.integers(1, 150), "out"), data.draw(st.integers(1, 700), "in"))
    dtype = data.draw(st.sampled_from(DTYPES), "dtype")
    linear = packed(library, random_weight(scheme, shape, group_size, has_offsets), dtype)
    x = torch.randn(data.draw(st.integers(1, 100), "rows"), shape[1]).to(dtype)
    library.tandem_set_num_threads(1)
    alone = torch.cat([linear(x[i : i + 1]) for i in range(len(x))])
    library.tandem_set_num_threads(data.draw(st.integers(1, 4), "threads"))
    start = data.draw(st.integers(0, len(x) - 1), "start")
    end = data.draw(st.integers(start + 1, len(x)), "end")
    assert torch.equal(linear(x), alone)
    assert torch.equal(linear(x[start:end]), alone[start:end])


@each_format
def test_a_model_sized_batch_has_the_bits_of_its_rows(
    library: ctypes.CDLL, scheme: str, group_size: int, has_offsets: bool
) -> None:
    linear = packed(
        library, random_weight(scheme, (192, 576), group_size, has_offsets), torch.bfloat16
    )
    x = torch.randn(600, 576).bfloat16()
    library.tandem_set_num_threads(2)
    together = linear(x)
    for num_rows in (1, 2, 8, 24, 25, 36, 64, 599):
        assert torch.equal(linear(x[:num_rows]), together[:num_rows])


@each_format
@each_dtype
def test_rows_of_the_weight_are_value_times_scale_plus_offset(
    library: ctypes.CDLL, scheme: str, group_size: int, has_offsets: bool, dtype: torch.dtype
) -> None:
    for shape in SHAPES:
        for half in (True, False):
            weight = random_weight(scheme, shape, group_size, has_offsets, half=half)
            indices = torch.randint(shape[0], (70,))
            rows = packed(library, weight, dtype).weight_rows(indices)
            assert torch.equal(rows, dequantized(weight)[indices].to(dtype))


@each_format
@each_dtype
def test_extreme_rows_are_right_or_not_finite(
    library: ctypes.CDLL, scheme: str, group_size: int, has_offsets: bool, dtype: torch.dtype
) -> None:
    weight = random_weight(scheme, (40, 300), group_size, has_offsets)
    linear = LinearPacker(library, dtype).pack(weight, None, out_dtype=torch.float32)
    x = torch.randn(16, 300).to(dtype)
    x[0] = 0.0
    x[1] = 1e-40
    x[2, 7] = 1e6  # one outlier
    x[3] *= 1e30
    x[4, 299] = float("nan")
    x[5, 0] = float("inf")
    x[6, 100] = float("-inf")
    y = linear(x)
    exact = x.double() @ dequantized(weight).double().T
    tolerance = 2e-2
    for row in (0, 1, 2, 3, 7, 15):
        scale = exact[row].abs().max() + 1e-25
        assert (y[row] - exact[row]).abs().max() <= tolerance * scale
    assert not y[4:7].isfinite().any()
    for row in (4, 5, 6):  # whoever is beside them isn't touched
        assert torch.equal(linear(x[row + 3 : row + 4]), y[row + 3 : row + 4])


@pytest.mark.parametrize("group_size", [0, 64], ids=["channel", "64"])
@pytest.mark.parametrize("num_columns", [512, 1023])
def test_int8_sums_of_the_largest_numbers_overflow_in_no_batch(
    library: ctypes.CDLL, group_size: int, num_columns: int
) -> None:
    signs = torch.ones(5, num_columns)
    signs[1] = -1
    signs[2, 1::2] = -1
    signs[3, 2::4] = -1
    signs[4] = torch.randn(num_columns).sign()
    values = torch.where(signs > 0, 127, -128).to(torch.int8)
    values = torch.cat([values, values.flip(0), torch.full((30, num_columns), -128)]).to(torch.int8)
    scales = torch.ones(40, -(-num_columns // (group_size or num_columns)))
    weight = QuantizedWeight("int8", values, scales, None, group_size or num_columns)
    linear = packed(library, weight, torch.float32)
    library.tandem_set_num_threads(1)
    # The largest that 16 bits hold, so nothing is rounded before sums are added up
    alone = torch.cat([linear(32767 * signs[i : i + 1]) for i in range(5)])
    exact = 32767 * signs.double() @ values.double().T
    # A unit's whole number is rounded to float32, and so is its addition to the others
    roundings = 2 * -(-num_columns // (group_size or 512))
    assert (alone - exact).abs().max() <= roundings * 2**-24 * 128 * 32767 * num_columns
    for num_rows in (*range(1, 8), 12, 13, 25, 40):
        rows = torch.arange(num_rows) % 5
        assert torch.equal(linear(32767 * signs[rows]), alone[rows])


@each_dtype
def test_int8_activations_round_finer_than_bfloat16(
    library: ctypes.CDLL, dtype: torch.dtype
) -> None:
    weight = random_weight("int8", (64, 576), 0, False)
    exact_weight = dequantized(weight)
    x = torch.randn(32, 576)
    exact = x.double() @ exact_weight.double().T
    ours = LinearPacker(library, torch.float32).pack(weight, None)(x)
    rounded = x.bfloat16().double() @ exact_weight.double().T
    assert (ours - exact).square().mean() < 0.01 * (rounded - exact).square().mean()


def test_a_weight_may_change_or_go_after_packing(library: ctypes.CDLL) -> None:
    weight = random_weight("int4", (40, 64), 32, True)
    linear = packed(library, weight, torch.float32)
    x = torch.randn(3, 64)
    before = linear(x)
    assert weight.offsets is not None
    for tensor in (weight.values, weight.scales, weight.offsets):
        tensor.zero_()
    assert torch.equal(linear(x), before)


@pytest.mark.parametrize(
    ("scheme", "group_size"), [("int4", 20), ("int8", 520), ("w8a8", 32)], ids=str
)
def test_groups_that_no_kernel_takes_are_refused(
    library: ctypes.CDLL, scheme: str, group_size: int
) -> None:
    weight = random_weight(scheme, (8, 1040), group_size, False)
    with pytest.raises(ValueError, match=r"groups of|one scale"):
        packed(library, weight, torch.float32)


def assert_near(y: Tensor, exact: Tensor, tolerance: float) -> None:
    if len(y) > 0:
        assert (y - exact).abs().max() <= tolerance * (exact.abs().max() + 1e-3)


def random_weight(
    scheme: str, shape: tuple[int, int], group_size: int, has_offsets: bool, *, half: bool = True
) -> QuantizedWeight:
    """Scales and offsets are such that float16 holds them, or are not."""
    torch.manual_seed(0)
    num_rows, num_columns = shape
    group_size = group_size or num_columns
    groups = -(-num_columns // group_size)
    scales = torch.rand(num_rows, groups) * 0.01 + 0.001
    offsets = torch.randn(num_rows, groups) * 0.02
    if half:
        scales, offsets = scales.half().float(), offsets.half().float()
    if scheme == "int4":
        values = torch.randint(0, 16, shape, dtype=torch.uint8)
    else:
        values = torch.randint(-128 if scheme == "int8" else -127, 128, shape, dtype=torch.int8)
    return QuantizedWeight(
        scheme,  # type: ignore[arg-type]
        values,
        scales,
        offsets if has_offsets else None,
        group_size,
    )


def packed(library: ctypes.CDLL, weight: QuantizedWeight, dtype: torch.dtype) -> CpuLinear:
    return LinearPacker(library, dtype).pack(weight, None)
