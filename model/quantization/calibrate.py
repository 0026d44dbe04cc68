"""Finds a calibration for a model: watches it read texts, then chooses site by site."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model.checkpoint import Checkpoint, open_checkpoint
from model.quantization.calibrated_checkpoint import query_channels
from model.quantization.recipe import Recipe
from model.quantization.smoothing import Choice, choose_factors, importance
from model.quantization.watching import watch_inputs
from text.card import ModelCard
from text.families.registry import family_named


@dataclass(frozen=True, eq=False, slots=True)
class Found:
    """Factors and importance by site, as in `Calibration`, and how they were chosen."""

    factors: dict[str, Tensor]
    importance: dict[str, Tensor]
    choices: dict[str, Choice]

    @property
    def error_ratio(self) -> float:
        """Squared errors of all layers' outputs together, of what they are without."""
        before = sum(choice.plain_error for choice in self.choices.values())
        return sum(choice.error for choice in self.choices.values()) / before if before else 1.0


def calibrate(
    card: ModelCard,
    recipe: Recipe,
    texts: Sequence[Sequence[int]],
    *,
    progress: Callable[[str], None],
) -> Found:
    """For a recipe that rounds, from texts of token ids. Raises ConfigError."""
    inputs = watch_inputs(card, texts, lambda done, n: progress(f"text {done} of {n}"))
    found = Found({}, {}, {})
    with open_checkpoint(card) as checkpoint, torch.inference_mode():
        for i in range(card.num_layers):
            progress(f"layer {i + 1} of {card.num_layers}")
            for site in _sites(card, checkpoint, i):
                name = f"layers.{i}.{site.name}"
                factors, choice = choose_factors(site.weight, inputs[name], recipe, site.channels)
                found.choices[name] = choice
                if choice.alpha:
                    if site.norm is not None:
                        factors = representable(factors, site.norm)
                    found.factors[name] = factors
                if choice.weighs:
                    columns = factors if site.channels is None else factors[site.channels]
                    found.importance[name] = importance(inputs[name], columns)
    return found


def representable(factors: Tensor, norm: Tensor) -> Tensor:
    """The nearest factors by which a norm's weight can be divided without an error in bfloat16."""
    divided = (norm / factors).to(torch.bfloat16).float()
    return torch.where((divided != 0) & (norm != 0), norm / divided, 1.0)


@dataclass(frozen=True, eq=False, slots=True)
class _Site:
    name: str
    weight: Tensor
    """float32 [out, in] of all that read the same input."""
    norm: Tensor | None
    """float32 [in]: what the norm before it multiplies with; None: there is no norm."""
    channels: Tensor | None


def _sites(card: ModelCard, checkpoint: Checkpoint, layer: int) -> Iterator[_Site]:
    """Where a layer has freedom; all reading is done here, one weight at a time."""
    family = family_named(card.architecture)
    names, prefix = family.layer, family.layer_prefix(layer)

    def weight(*modules: str | None) -> Tensor:
        distinct = dict.fromkeys(prefix + module for module in modules if module is not None)
        return torch.cat([checkpoint.read(f"{module}.weight").float() for module in distinct])

    def norm(module: str) -> Tensor:
        values = checkpoint.read(f"{prefix}{module}.weight").float()
        return values + 1 if family.norm_plus_one else values

    attention, mlp = (names.q, names.k, names.v), (names.gate, names.up)
    if names.mlp_norm is None:
        yield _Site("qkv", weight(*attention, *mlp), norm(names.input_norm), None)
    else:
        yield _Site("qkv", weight(*attention), norm(names.input_norm), None)
        yield _Site("gate_up", weight(*mlp), norm(names.mlp_norm), None)
    yield _Site("output", weight(names.output), None, query_channels(card))
    if names.gate is not None:
        yield _Site("down", weight(names.down), None, None)
