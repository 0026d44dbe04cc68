"""Qwen2, with biases in its projections, and Qwen3, whose queries and keys are normalised."""

from __future__ import annotations

import dataclasses

from text.decoder_config import DecoderConfig
from text.families.family import Family, GGUFFormat, LayerNames
from text.families.settings import base_config, windows_by_type
from text.fields import Fields

# What the configuration classes assume where the keys are absent
_WINDOW, _MAX_WINDOW_LAYERS, _QWEN3_HEAD_DIM = 4096, 28, 128


def _read_qwen2(config: Fields) -> DecoderConfig:
    base = base_config(config, "qwen2")
    return dataclasses.replace(
        base,
        attention_bias=True,
        attention_output_bias=False,
        mlp_bias=False,
        windows=_windows(config, base.num_layers),
    )


def _read_qwen3(config: Fields) -> DecoderConfig:
    base = base_config(config, "qwen3", default_head_dim=_QWEN3_HEAD_DIM)
    return dataclasses.replace(
        base, mlp_bias=False, qk_norm=True, windows=_windows(config, base.num_layers)
    )


def _windows(config: Fields, num_layers: int) -> tuple[int | None, ...]:
    """Layers from `max_window_layers` on have a window, if any has."""
    if not config.flag("use_sliding_window", False):
        return windows_by_type(config, None, ["full_attention"] * num_layers)
    first = config.integer("max_window_layers", _MAX_WINDOW_LAYERS)
    types = ["sliding_attention" if i >= first else "full_attention" for i in range(num_layers)]
    return windows_by_type(config, config.integer("sliding_window", _WINDOW), types)


QWEN2 = Family(
    name="qwen2",
    classes=("Qwen2ForCausalLM",),
    read=_read_qwen2,
    layer=LayerNames(),
    gguf=GGUFFormat(architecture="qwen2"),
)
QWEN3 = Family(
    name="qwen3",
    classes=("Qwen3ForCausalLM",),
    read=_read_qwen3,
    layer=LayerNames(q_norm="self_attn.q_norm", k_norm="self_attn.k_norm"),
    gguf=GGUFFormat(architecture="qwen3"),
)
