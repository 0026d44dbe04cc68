"""RoPE settings in config.json, in both spellings that exist.

Old: `rope_theta` and `rope_scaling: {type | rope_type, factor, ...}`. New (transformers 5):
`rope_parameters: {rope_theta, rope_type, factor, ...}`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from core.errors import ConfigError
from text.fields import Fields
from text.rope_config import RopeConfig, RopeScaling

_SCALINGS: dict[str, RopeScaling] = {
    "default": "none",
    "none": "none",
    "linear": "linear",
    "dynamic": "dynamic",
    "yarn": "yarn",
    "llama3": "llama3",
    "longrope": "longrope",
    "su": "longrope",
}
_DEFAULT_THETA = 10000.0


def read_rope(
    config: Fields,
    fields: Fields | None = None,
    *,
    default_theta: float = _DEFAULT_THETA,
    aliases: Mapping[str, RopeScaling] = MappingProxyType({}),
) -> RopeConfig:
    """Raises ConfigError for an unknown scaling or a missing parameter.

    `fields` is the section to read, where it isn't the usual one; `aliases` are what names of
    scalings mean to one family only.
    """
    fields = fields or _section(config)
    theta = fields.number("rope_theta", config.number("rope_theta", default_theta))
    scaling = _scaling(fields, aliases)
    max_position = config.integer("max_position_embeddings")
    if scaling == "none":
        return RopeConfig(theta=theta, original_max_position=max_position)
    return _scaled(scaling, theta, fields, config, max_position)


def partial_rotary_factor(config: Fields, default: float) -> float:
    """The share of a head that is rotated."""
    fields = config if config.has("partial_rotary_factor") else _section(config)
    return fields.number("partial_rotary_factor", default)


def scaled_model_len(rope: RopeConfig, max_position: int) -> int:
    """Tokens the model can use: `max_position` (config.json) or what the scaling makes of it.

    linear and dynamic state the length before scaling; llama3 and longrope the one after it; yarn
    either, so the larger counts.
    """
    if rope.scaling in ("linear", "dynamic"):
        return int(max_position * rope.factor)
    if rope.scaling == "yarn":
        return max(max_position, int(rope.original_max_position * rope.factor))
    return max_position


def _section(config: Fields) -> Fields:
    new = config.has("rope_parameters")
    return config.section("rope_parameters" if new else "rope_scaling")


def _scaling(fields: Fields, aliases: Mapping[str, RopeScaling]) -> RopeScaling:
    name = fields.text("rope_type", fields.text("type", "default"))
    if name in aliases:
        return aliases[name]
    if name not in _SCALINGS:
        raise ConfigError(
            f"{fields.where}: rope_type {name!r} is not supported; supported: "
            f"{', '.join(sorted(_SCALINGS))}"
        )
    return _SCALINGS[name]


def _scaled(
    scaling: RopeScaling, theta: float, fields: Fields, config: Fields, max_position: int
) -> RopeConfig:
    # Some checkpoints keep the original length beside max_position_embeddings instead.
    outer = config.integer("original_max_position_embeddings", max_position)
    original = fields.integer("original_max_position_embeddings", outer)
    if original <= 0:
        raise ConfigError(
            f"{fields.where}: original_max_position_embeddings is {original}, not positive"
        )
    rope = RopeConfig(
        theta=theta,
        scaling=scaling,
        factor=_factor(scaling, fields, max_position / original),
        original_max_position=original,
        attention_factor=fields.optional_number("attention_factor"),
    )
    return _with_own_parameters(rope, fields)


def _factor(scaling: RopeScaling, fields: Fields, implied: float) -> float:
    # longrope and some yarn checkpoints state lengths instead of the factor between them.
    default = implied if scaling in ("longrope", "yarn") else None
    factor = fields.number("factor", default)
    if factor < 1:
        raise ConfigError(f"{fields.where}: factor is {factor}, below 1")
    return factor


def _with_own_parameters(rope: RopeConfig, fields: Fields) -> RopeConfig:
    if rope.scaling == "llama3":
        return dataclasses.replace(
            rope,
            low_freq_factor=fields.number("low_freq_factor"),
            high_freq_factor=fields.number("high_freq_factor"),
        )
    if rope.scaling == "longrope":
        if not (fields.has("short_factor") and fields.has("long_factor")):
            raise ConfigError(f"{fields.where}: longrope needs short_factor and long_factor")
        return dataclasses.replace(
            rope,
            short_factor=fields.numbers("short_factor"),
            long_factor=fields.numbers("long_factor"),
        )
    if rope.scaling == "yarn":
        return dataclasses.replace(
            rope,
            beta_fast=fields.number("beta_fast", 32.0),
            beta_slow=fields.number("beta_slow", 1.0),
            mscale=fields.optional_number("mscale"),
            mscale_all_dim=fields.optional_number("mscale_all_dim"),
            truncate=fields.flag("truncate", True),
        )
    return rope
