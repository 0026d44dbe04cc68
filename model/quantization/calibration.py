"""A calibration: what rounding may know of each layer's inputs, as `tandem calibrate` writes it.

Factors for channels:

    layers.3.qkv       float32 [hidden]                   input norm / s, columns of q, k and v x s
    layers.3.output    float32 [kv heads * head size]     rows of v / s, columns of the output x s
    layers.3.gate_up   float32 [hidden]                   MLP norm / s, columns of gate and up x s
    layers.3.down      float32 [inner]                    rows of up / s, columns of down x s

How much each column weighs, for int4 (the square of the mean size of its inputs):

    layers.3.qkv.importance, ...      float32 [in], one for each column of the site's weights

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
_IMPORTANCE = ".importance"


@dataclass(frozen=True, eq=False, slots=True)
class Calibration:
    """By site (`layers.3.qkv`)."""

    factors: Mapping[str, Tensor]
    """Sites without any keep factors of 1."""
    importance: Mapping[str, Tensor]
    """Columns of sites without any weigh the same."""
    digest: str
    """Of the file: workers exchange KV only if they use the same."""


def write_calibration(
    path: Path,
    factors: Mapping[str, Tensor],
    importance: Mapping[str, Tensor],
    card: ModelCard,
    quantization: str,
) -> None:
    """`quantization` is the name of the recipe that all of it was chosen for."""
    facts = {"weights": card.weights_digest, "quantization": quantization}
    tensors = {name: tensor.contiguous() for name, tensor in factors.items()}
    tensors |= {name + _IMPORTANCE: tensor.contiguous() for name, tensor in importance.items()}
    save_file(tensors, path, facts)


def read_calibration(path: str, card: ModelCard, quantization: str) -> Calibration:
    """Raises ConfigError for what is no calibration of these weights for this quantisation."""
    file = Path(path).expanduser()
    try:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
        with safe_open(file, framework="pt") as opened:
            facts = opened.metadata() or {}
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
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
    importance = {
        name.removesuffix(_IMPORTANCE): tensor
        for name, tensor in tensors.items()
        if name.endswith(_IMPORTANCE)
    }
    factors = {n: tensor for n, tensor in tensors.items() if not n.endswith(_IMPORTANCE)}
    return Calibration(factors, importance, digest)
