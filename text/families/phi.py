"""Phi-1, 1.5 and 2: LayerNorm, attention and MLP side by side, half of each head rotated."""

from __future__ import annotations

import dataclasses

from text.decoder_config import DecoderConfig
from text.families.family import Family, LayerNames
from text.families.settings import base_config
from text.fields import Fields

# What PhiConfig assumes where the keys are absent
_ROTARY_FACTOR, _EPS = 0.5, 1e-5


def _read(config: Fields) -> DecoderConfig:
    base = base_config(
        config,
        "phi",
        default_kv_heads=config.integer("num_attention_heads"),
        default_rotary_factor=_ROTARY_FACTOR,
        default_activation="gelu_new",
        eps_key="layer_norm_eps",
        default_eps=_EPS,
    )
    return dataclasses.replace(
        base,
        attention_bias=True,
        attention_output_bias=True,
        mlp_bias=True,
        head_bias=True,
        qk_norm=config.flag("qk_layernorm", False),
    )


PHI = Family(
    name="phi",
    classes=("PhiForCausalLM",),
    read=_read,
    layer=LayerNames(
        output="self_attn.dense",
        q_norm="self_attn.q_layernorm",
        k_norm="self_attn.k_layernorm",
        mlp_norm=None,
        gate=None,
        up="mlp.fc1",
        down="mlp.fc2",
    ),
    final_norm="model.final_layernorm",
    layer_norm=True,
)
