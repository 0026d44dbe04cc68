"""Calibrations: the same model before rounding, never worse on its texts after it."""

from __future__ import annotations

from pathlib import Path

import fakes_tiny_model
import pytest
import torch
from fakes_generation import Generation
from tandem_kernels.reference import ReferenceKernels
from torch import Tensor

from core.config import ModelConfig
from core.errors import ConfigError
from model.checkpoint import open_checkpoint
from model.loader import load_model
from model.quantization.calibrate import calibrate, representable
from model.quantization.calibrated_checkpoint import CalibratedCheckpoint, importance_by_module
from model.quantization.calibration import Calibration, read_calibration, write_calibration
from model.quantization.recipe import Recipe, resolve_recipe
from model.quantization.smoothing import Inputs, choose_factors
from model.tensor_parallel import TensorParallel
from text.decoder_tensors import decoder_tensors
from text.families.registry import family_named
from text.model_card import ModelCard

TEXTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9]]
FAMILIES = ["Llama", "Gemma2", "Phi3", "Phi"]


def random_factors(card: ModelCard) -> dict[str, Tensor]:
    """Between a half and two for every site that the card's layers have."""
    sizes = {"qkv": card.hidden_size, "output": card.num_kv_heads * card.head_dim}
    if card.architecture != "phi":
        sizes |= {"gate_up": card.hidden_size, "down": card.intermediate_size}
    generator = torch.Generator().manual_seed(0)
    return {
        f"layers.{i}.{site}": 2 ** (2 * torch.rand(size, generator=generator) - 1)
        for i in range(card.num_layers)
        for site, size in sizes.items()
    }


def logits(card: ModelCard, recipe: Recipe) -> Tensor:
    model = load_model(
        card,
        dtype=torch.float32,
        device=torch.device("cpu"),
        tp=TensorParallel.single(),
        recipe=recipe,
        kernels=ReferenceKernels(),
    )
    [rows] = Generation(model, card).step([("a", TEXTS[0])])
    return rows


def test_factors_change_nothing_before_rounding(tmp_path: Path) -> None:
    for family in FAMILIES:
        card = fakes_tiny_model.make(family, tmp_path / family, pad_token_id=0).card
        plain = logits(card, Recipe())
        calibrated = logits(
            card, Recipe(calibration=Calibration(random_factors(card), {}, "digest"))
        )
        assert not torch.equal(plain, calibrated)
        torch.testing.assert_close(calibrated, plain, atol=2e-4, rtol=1e-4)


def inputs_of(x: Tensor) -> Inputs:
    return Inputs(x, x.abs().mean(0), x.abs().amax(0))


@pytest.mark.parametrize("scheme", ["int8", "int4", "w8a8"])
def test_outputs_come_out_no_worse_and_mostly_better_where_channels_are_uneven(
    scheme: str, tmp_path: Path
) -> None:
    recipe = Recipe(scheme)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn((40, 64), generator=generator)
    spread = torch.linspace(-3, 3, 64).exp()
    x = torch.randn((50, 64), generator=generator) * spread
    factors, choice = choose_factors(weight, inputs_of(x), recipe)
    assert factors.shape == (64,)
    assert choice.alpha > 0
    assert choice.weighs == (scheme == "int4")
    assert choice.error < 0.9 * choice.plain_error


def test_calibrated_layers_are_no_worse_and_the_file_carries_their_factors(tmp_path: Path) -> None:
    card = fakes_tiny_model.llama(tmp_path / "model").card
    recipe = Recipe("w8a8")
    said: list[str] = []
    found = calibrate(card, recipe, TEXTS, progress=said.append)
    assert len(found.choices) == 4 * card.num_layers
    assert all(choice.error <= choice.plain_error for choice in found.choices.values())
    assert found.error_ratio < 1
    assert said[-1] == f"layer {card.num_layers} of {card.num_layers}"
    file = tmp_path / "scales.safetensors"
    write_calibration(file, found.factors, found.importance, card, recipe.name)
    config = ModelConfig(quantization="w8a8", calibration=str(file))
    resolved = resolve_recipe(config, card)
    assert resolved.name.startswith("w8a8-")
    floats = logits(card, Recipe())
    assert (logits(card, resolved) - floats).norm() < 0.05 * floats.norm()


def test_factors_that_win_nothing_on_other_samples_are_left_out() -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn((40, 64), generator=generator)
    x = torch.randn((60, 64), generator=generator)
    x[:30] *= torch.linspace(-3, 3, 64).exp()  # on the first half factors would win
    factors, choice = choose_factors(weight, inputs_of(x), Recipe("int8"))
    assert choice.alpha == 0 and choice.error == choice.plain_error
    assert torch.equal(factors, torch.ones(64))


def test_int4_is_told_which_columns_weigh_more_and_the_model_rounds_by_it(tmp_path: Path) -> None:
    card = fakes_tiny_model.llama(tmp_path / "model").card
    recipe = Recipe("int4", 64)
    found = calibrate(card, recipe, TEXTS, progress=lambda _: None)
    weighed = [name for name, choice in found.choices.items() if choice.weighs]
    assert weighed and list(found.importance) == weighed
    file = tmp_path / "scales.safetensors"
    write_calibration(file, {}, found.importance, card, recipe.name)
    calibration = read_calibration(str(file), card, recipe.name)
    assert not calibration.factors
    weighted = logits(card, Recipe("int4", 64, calibration))
    assert not torch.equal(weighted, logits(card, recipe))
    in_memory = Recipe("int4", 64, Calibration({}, found.importance, ""))
    assert torch.equal(weighted, logits(card, in_memory))


def test_every_family_finds_the_importance_of_its_modules(tmp_path: Path) -> None:
    for name in FAMILIES:
        card = fakes_tiny_model.make(name, tmp_path / name, pad_token_id=0).card
        found = calibrate(card, Recipe("int4"), TEXTS, progress=lambda _: None)
        family = family_named(card.architecture)
        modules = importance_by_module(Calibration({}, found.importance, ""), family)
        shapes = decoder_tensors(card)
        assert modules
        for module, importance in modules.items():
            assert importance.shape == shapes[f"{module}.weight"][1:]


def test_a_norm_divided_by_factors_is_exact_in_bfloat16() -> None:
    norm = torch.randn(64, generator=torch.Generator().manual_seed(0))
    norm[3] = 0
    factors = representable(torch.rand(64) + 0.5, norm)
    divided = norm * (1 / factors)
    torch.testing.assert_close(divided.bfloat16().float(), divided, atol=0, rtol=1e-6)
    assert factors[3] == 1


def test_calibrations_of_other_weights_or_other_rounding_are_refused(tmp_path: Path) -> None:
    card = fakes_tiny_model.llama(tmp_path / "a").card
    other = fakes_tiny_model.llama(tmp_path / "b", hidden_size=24).card
    file = tmp_path / "scales.safetensors"
    write_calibration(file, random_factors(card), {}, card, "int8")
    with pytest.raises(ConfigError, match="was made for other weights"):
        read_calibration(str(file), other, "int8")
    with pytest.raises(ConfigError, match="was made for int8, not for w8a8"):
        read_calibration(str(file), card, "w8a8")
    with pytest.raises(ConfigError, match="cannot read"):
        read_calibration(str(tmp_path / "none"), card, "int8")
    file.write_text("no tensors")
    with pytest.raises(ConfigError, match="is no calibration"):
        read_calibration(str(file), card, "int8")


def test_factors_and_importance_that_no_layer_has_are_named(tmp_path: Path) -> None:
    card = fakes_tiny_model.llama(tmp_path).card
    with open_checkpoint(card) as checkpoint:
        for name, size in (("layers.9.qkv", 48), ("layers.0.head", 48), ("layers.0.qkv", 47)):
            values = {name: torch.ones(size)}
            for calibration in (Calibration(values, {}, ""), Calibration({}, values, "")):
                with pytest.raises(ConfigError, match=name):
                    CalibratedCheckpoint(checkpoint, calibration, card)
