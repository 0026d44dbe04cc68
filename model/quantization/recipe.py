"""What becomes of a model's weights when they are loaded.

    none     floats of the model's dtype, whatever the checkpoint holds
    stored   whole numbers as the checkpoint has them; what it has as floats stays floats
    int8     rounded, one scale a row
    int4     rounded, a scale and an offset for each group of columns
    w8a8     like int8, and activations are rounded to int8 as well

Head and embedding are read by every token and suffer most: they are int8 where the layers are
rounded, and their activations are never rounded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tandem_kernels import QuantizedWeight
from torch import Tensor

from core.config import ModelConfig
from core.errors import ConfigError
from model.quantization.calibration import Calibration, read_calibration
from model.quantization.rounding import round_int4, round_int8
from text.card import ModelCard

Scheme = Literal["none", "stored", "int8", "int4", "w8a8"]


@dataclass(frozen=True, eq=False, slots=True)
class Recipe:
    """One for all layers of a model."""

    scheme: Scheme = "none"
    group_size: int = 32
    """Columns of an int4 group."""
    calibration: Calibration | None = None

    @property
    def rounds(self) -> bool:
        """Weights are rounded here, from floats."""
        return self.scheme in ("int8", "int4", "w8a8")

    @property
    def name(self) -> str:
        """As in `int4-g32`; workers whose weights were treated otherwise have another."""
        name = f"int4-g{self.group_size}" if self.scheme == "int4" else self.scheme
        return name if self.calibration is None else f"{name}-{self.calibration.digest}"

    def round(self, weight: Tensor, importance: Tensor | None = None) -> QuantizedWeight:
        """A layer's weight [out, in] of any float type. `importance` [in]: `round_int4`'s."""
        if self.scheme == "int4":
            return round_int4(weight, self.group_size, importance)
        assert self.scheme in ("int8", "w8a8")
        return round_int8(weight, self.scheme)

    def round_head(self, weight: Tensor) -> QuantizedWeight:
        """The head's [vocab, hidden], which may be the embedding too."""
        return round_int8(weight, "int8")


FLOATS = Recipe()
"""Every weight in the model's dtype."""


def resolve_recipe(config: ModelConfig, card: ModelCard) -> Recipe:
    """The configured recipe for a model. Raises ConfigError for settings that contradict it."""
    scheme = _scheme(config, card)
    recipe = Recipe(scheme, config.quantization_group_size)
    if config.calibration is None:
        return recipe
    if not recipe.rounds:
        raise ConfigError(
            f"model.calibration is set, but model.quantization {config.quantization} rounds no "
            "weights; int8, int4 and w8a8 do"
        )
    calibration = read_calibration(config.calibration, card, recipe.name)
    return Recipe(scheme, config.quantization_group_size, calibration)


def _scheme(config: ModelConfig, card: ModelCard) -> Scheme:
    if config.quantization == "auto":
        return "none" if card.quantization == "none" else "stored"
    return config.quantization
