"""A calibration: factors for the channels of every layer, as `tandem calibrate` writes them.

    layers.3.qkv       float32 [hidden]                   input norm / s, columns of q, k and v x s
    layers.3.output    float32 [kv heads * head size]     rows of v / s, columns of the output x s
    layers.3.gate_up   float32 [hidden]                   MLP norm / s, columns of gate and up x s
    layers.3.down      float32 [inner]                    rows of up / s, columns of down x s

A safetensors file; its metadata says for which weights and which rounding the factors were chosen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from core.errors import ConfigError
from text.card import ModelCard

SITES = ("qkv", "output", "gate_up", "down")


@dataclass(frozen=True, eq=False, slots=True)
class Calibration:
    """Factors by name (`layers.3.qkv`); layers without any keep factors of 1."""

    factors: Mapping[str, Tensor]
    digest: str
    """Of the file: workers exchange KV only if they use the same."""


def write_calibration(
    path: Path, factors: Mapping[str, Tensor], card: ModelCard, quantization: str
) -> None:
    """`quantization` is the name of the recipe that the factors were chosen for."""
    facts = {"weights": card.weights_digest, "quantization": quantization}
    save_file({name: tensor.contiguous() for name, tensor in factors.items()}, path, facts)


def read_calibration(path: str, card: ModelCard, quantization: str) -> Calibration:
    """Raises ConfigError for what is no calibration of these weights for this quantisation."""
    file = Path(path).expanduser()
    try:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
        with safe_open(file, framework="pt") as opened:
            facts = opened.metadata() or {}
            factors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except OSError as error:
        raise ConfigError(f"model.calibration: cannot read {file}: {error.strerror}") from None
    except SafetensorError as error:
        raise ConfigError(f"model.calibration: {file} is no calibration: {error}") from None
    if facts.get("weights") != card.weights_digest:
        raise ConfigError(
            f"model.calibration: {file} was made for other weights than {card.name}'s"
        )
    if facts.get("quantization") != quantization:
        raise ConfigError(
            f"model.calibration: {file} was made for {facts.get('quantization')}, not for "
            f"{quantization}"
        )
    return Calibration(factors, digest)
