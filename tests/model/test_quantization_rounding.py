"""Rounding at load: how far weights move, and what a recipe makes of a whole model."""

from __future__ import annotations

from pathlib import Path

import fakes_tiny_model
import pytest
import torch
from fakes_generation import Generation
from hypothesis import given, settings
from hypothesis import strategies as st
from tandem_kernels.reference import ReferenceKernels
from tandem_kernels.reference_linear import dequantized
from torch import Tensor

from core.config import ModelConfig
from core.errors import ConfigError
from model.loader import load_model
from model.quantization.recipe import FLOATS, Recipe, resolve_recipe
from model.quantization.rounding import round_int4, round_int8
from model.tensor_parallel import TensorParallel
from text.model_card import ModelCard

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5]


def weight_of(num_rows: int, num_columns: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn((num_rows, num_columns), generator=generator)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(1, 200), st.integers(0, 99))
def test_int8_moves_no_weight_by_more_than_half_a_step(rows: int, columns: int, seed: int) -> None:
    weight = weight_of(rows, columns, seed)
    rounded = round_int8(weight, "int8")
    assert rounded.values.abs().max() <= 127
    assert ((dequantized(rounded) - weight).abs() <= rounded.scales * 0.5001).all()


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 9), st.integers(1, 200), st.sampled_from([32, 64, 128]), st.integers(0, 99))
def test_int4_is_never_worse_than_the_grid_between_the_extremes(
    rows: int, columns: int, group_size: int, seed: int
) -> None:
    weight = weight_of(rows, columns, seed)
    rounded = round_int4(weight, group_size)
    assert rounded.values.max() <= 15
    assert rounded.scales.shape == (rows, -(-columns // group_size))
    error = (dequantized(rounded) - weight).square().sum()
    # What float16 takes from scales and offsets: a part of a thousandth of the largest weights
    of_float16 = weight.numel() * (float(weight.abs().max()) * 2**-11) ** 2
    assert error <= plain_grid_error(weight, group_size) * 1.0001 + of_float16


def plain_grid_error(weight: Tensor, group_size: int) -> Tensor:
    total = torch.zeros(())
    for group in torch.split(weight, group_size, dim=1):
        low, high = group.amin(1, keepdim=True), group.amax(1, keepdim=True)
        step = ((high - low) / 15).clamp_min(1e-30)
        total += (((group - low) / step).round() * step + low - group).square().sum()
    return total


def test_weights_on_a_float16_grid_come_out_as_they_went_in() -> None:
    generator = torch.Generator().manual_seed(0)
    grid = torch.randint(0, 16, (8, 2, 32), generator=generator)
    grid[:, :, 0], grid[:, :, 1] = 0, 15
    scales = (torch.rand((8, 2, 1), generator=generator) * 0.1).half().float()
    offsets = (-7 * scales - torch.rand((8, 2, 1), generator=generator) * 0.01).half().float()
    weight = (grid * scales + offsets).view(8, 64)
    assert torch.equal(dequantized(round_int4(weight, 32)), weight)


def test_scales_and_offsets_of_int4_are_numbers_of_float16() -> None:
    rounded = round_int4(weight_of(16, 160), 64)
    assert rounded.offsets is not None
    for figures in (rounded.scales, rounded.offsets):
        assert torch.equal(figures.half().float(), figures)


def test_importance_moves_the_error_to_columns_that_matter_less() -> None:
    weight = weight_of(64, 128)
    importance = torch.ones(128)
    importance[::4] = 100
    plain = (dequantized(round_int4(weight, 32)) - weight).square().sum(0)
    weighted = (dequantized(round_int4(weight, 32, importance)) - weight).square().sum(0)
    assert (weighted * importance).sum() < (plain * importance).sum()


def test_weights_beyond_float16_stay_finite() -> None:
    weight = weight_of(4, 64) * 1e6
    torch.testing.assert_close(dequantized(round_int4(weight, 32)), weight, atol=3e5, rtol=0)


@pytest.mark.parametrize("weight", [torch.zeros(3, 40), torch.full((3, 40), -2.5)])
def test_constant_weights_stay_what_they_are(weight: Tensor) -> None:
    for rounded in (round_int8(weight, "int8"), round_int4(weight, 32)):
        torch.testing.assert_close(dequantized(rounded), weight, atol=1e-6, rtol=1e-6)


def logits(card: ModelCard, recipe: Recipe) -> Tensor:
    model = load_model(
        card,
        dtype=torch.float32,
        device=torch.device("cpu"),
        tp=TensorParallel.single(),
        recipe=recipe,
        kernels=ReferenceKernels(),
    )
    [rows] = Generation(model, card).step([("a", PROMPT)])
    return rows


@pytest.mark.parametrize(
    ("recipe", "most"),
    [(Recipe("int8"), 0.06), (Recipe("w8a8"), 0.07), (Recipe("int4"), 0.5)],
    ids=lambda value: value.name if isinstance(value, Recipe) else "",
)
def test_a_rounded_model_stays_near_its_floats(recipe: Recipe, most: float, tmp_path: Path) -> None:
    card = fakes_tiny_model.llama(tmp_path, tie_word_embeddings=True).card
    floats, rounded = logits(card, FLOATS), logits(card, recipe)
    assert 0 < (rounded - floats).norm() < most * floats.norm()


def test_auto_is_floats_where_the_checkpoint_holds_floats(tmp_path: Path) -> None:
    card = fakes_tiny_model.llama(tmp_path).card
    assert resolve_recipe(ModelConfig(quantization="auto"), card).name == "none"
    assert resolve_recipe(ModelConfig(), card).name == "none"
    config = ModelConfig(quantization="int4", quantization_group_size=128)
    assert resolve_recipe(config, card).name == "int4-g128"


def test_a_calibration_needs_weights_that_are_rounded(tmp_path: Path) -> None:
    card = fakes_tiny_model.llama(tmp_path).card
    with pytest.raises(
        ConfigError, match=r"model\.calibration is set, but model\.quantization none"
    ):
        resolve_recipe(ModelConfig(calibration="scales.safetensors"), card)
