"""How the weights of a Hugging Face directory are quantised: config.json's quantization_config.

    gptq                "quant_method": "gptq", 4 or 8 bits
    awq                 "quant_method": "awq", 4 bits, packed for GEMM
    compressed-tensors  format "pack-quantized" (weights only) or "int-quantized" (int8, activations
                        rounded to int8 for each token, or left as they are)

Which layers are quantised isn't read here: their tensors say it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from core.errors import ConfigError
from text.fields import Fields, read_json

StoredFormat = Literal["gptq", "awq", "pack-quantized", "int-quantized"]


@dataclass(frozen=True, slots=True)
class StoredQuantization:
    """One way for all quantised layers of a checkpoint."""

    format: StoredFormat
    bits: Literal[4, 8]
    group_size: int | None
    """Columns that share a scale; None: all of a row."""
    symmetric: bool
    zero_point_shift: int = 0
    """What has to be added to a stored zero point: 1 in GPTQ's first format."""
    rounds_activations: bool = False
    """Activations are rounded to int8, with a scale for each token."""

    @property
    def name(self) -> str:
        """As in `gptq-int4-g128`."""
        group = "" if self.group_size is None else f"-g{self.group_size}"
        return f"{self.format}-int{self.bits}{group}"


def stored_quantization(directory: Path) -> StoredQuantization | None:
    """Of a Hugging Face directory; None: weights are floats. Raises ConfigError."""
    config = read_json(directory / "config.json")
    return None if config is None else read_stored_quantization(config)


def read_stored_quantization(config: Fields) -> StoredQuantization | None:
    """From the fields of config.json; None: weights are floats.

    Raises ConfigError that names the key of what isn't supported.
    """
    if not config.has("quantization_config"):
        return None
    section = config.section("quantization_config")
    method = section.text("quant_method", "compressed-tensors" if section.has("format") else None)
    if method not in _READERS:
        raise _refused(section, "quant_method", method, ", ".join(_READERS))
    return _READERS[method](section)


def _gptq(section: Fields) -> StoredQuantization:
    version = section.text("checkpoint_format", "gptq")
    if version not in ("gptq", "gptq_v2"):
        raise _refused(section, "checkpoint_format", version, "gptq, gptq_v2")
    return StoredQuantization(
        format="gptq",
        bits=_bits(section, "bits", (4, 8)),
        group_size=_group_size(section),
        symmetric=section.flag("sym", True),
        zero_point_shift=0 if version == "gptq_v2" else 1,
    )


def _awq(section: Fields) -> StoredQuantization:
    version = section.text("version", "gemm").lower()
    if version != "gemm":
        raise _refused(section, "version", version, "gemm")
    return StoredQuantization(
        format="awq",
        bits=_bits(section, "bits" if section.has("bits") else "w_bit", (4,)),
        group_size=_group_size(
            section, "group_size" if section.has("group_size") else "q_group_size"
        ),
        symmetric=not section.flag("zero_point", True),
    )


def _compressed_tensors(section: Fields) -> StoredQuantization:
    storage = section.text("format")
    if storage not in ("pack-quantized", "int-quantized"):
        raise _refused(section, "format", storage, "pack-quantized, int-quantized")
    if section.section("sparsity_config").text("format", "dense") != "dense":
        raise ConfigError(f"{section.where}: sparsity_config is not supported")
    groups = section.section("config_groups")
    if len(groups.values) != 1:
        raise ConfigError(
            f"{groups.where} has {len(groups.values)} groups; one for all layers is supported"
        )
    group = groups.section(next(iter(groups.values)))
    weights = group.section("weights")
    if weights.text("type", "int") != "int":
        raise _refused(weights, "type", weights.text("type"), "int")
    return StoredQuantization(
        format="pack-quantized" if storage == "pack-quantized" else "int-quantized",
        bits=_bits(weights, "num_bits", (4, 8) if storage == "pack-quantized" else (8,)),
        group_size=_group_of_strategy(weights),
        symmetric=weights.flag("symmetric", True),
        rounds_activations=_rounds_activations(group, weights, storage),
    )


def _group_of_strategy(weights: Fields) -> int | None:
    strategy = weights.text("strategy", "tensor")
    if strategy not in ("tensor", "channel", "group"):
        raise _refused(weights, "strategy", strategy, "tensor, channel, group")
    return _group_size(weights) if strategy == "group" else None


def _rounds_activations(group: Fields, weights: Fields, storage: str) -> bool:
    if not group.has("input_activations"):
        return False
    activations = group.section("input_activations")
    per_row = _group_of_strategy(weights) is None and weights.flag("symmetric", True)
    if storage != "int-quantized" or not per_row:
        raise ConfigError(
            f"{activations.where} is supported together with int8 weights that are symmetric "
            "with one scale a row"
        )
    wanted: tuple[tuple[str, object], ...] = (
        ("num_bits", 8),
        ("type", "int"),
        ("dynamic", True),
        ("strategy", "token"),
        ("symmetric", True),
    )
    for key, value in wanted:
        if activations.values.get(key, value) != value:
            raise _refused(activations, key, activations.values[key], str(value))
    return True


def _bits(section: Fields, key: str, supported: tuple[Literal[4, 8], ...]) -> Literal[4, 8]:
    bits = section.integer(key)
    for candidate in supported:
        if bits == candidate:
            return candidate
    raise _refused(section, key, bits, ", ".join(map(str, supported)))


def _group_size(section: Fields, key: str = "group_size") -> int | None:
    size = section.integer(key, -1)
    if size == 0 or size < -1:
        raise ConfigError(f"{section.where}: {key} is {size}; -1 means whole rows")
    return None if size == -1 else size


def _refused(section: Fields, key: str, value: object, supported: str) -> ConfigError:
    return ConfigError(f"{section.where}: {key} {value!r} is not supported; supported: {supported}")


_READERS = {"gptq": _gptq, "awq": _awq, "compressed-tensors": _compressed_tensors}
