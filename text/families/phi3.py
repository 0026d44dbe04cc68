"""Phi-3 and Phi-4 (mini): Llama with qkv, and gate and up, each in one tensor, and LongRoPE."""

from __future__ import annotations

import dataclasses

from text.decoder_config import DecoderConfig
from text.families.family import Family, GGUFFormat, LayerNames
from text.families.settings import base_config
from text.fields import Fields
from text.gguf_metadata import GGUFMetadata, float_vector
from text.huggingface_rope import read_rope

# What Phi3Config assumes where the key is absent
_EPS = 1e-5


def _read(config: Fields) -> DecoderConfig:
    base = base_config(
        config,
        "phi3",
        default_kv_heads=config.integer("num_attention_heads"),
        default_rotary_factor=1.0,
        default_eps=_EPS,
        # Its first checkpoints call their searched factors `yarn`
        rope=read_rope(config, aliases={"yarn": "longrope"}),
    )
    window = config.integer("sliding_window") if config.has("sliding_window") else None
    return dataclasses.replace(
        base,
        attention_bias=False,
        attention_output_bias=False,
        mlp_bias=False,
        windows=(window,) * base.num_layers,
    )


def _adjust(config: DecoderConfig, fields: Fields, metadata: GGUFMetadata) -> DecoderConfig:
    window = fields.integer("phi3.attention.sliding_window", 0) or None
    short, long = (
        float_vector(metadata, f"rope_factors_{kind}.weight") for kind in ("short", "long")
    )
    rope = config.rope
    if long:
        original = fields.integer("phi3.rope.scaling.original_context_length")
        rope = dataclasses.replace(
            rope,
            scaling="longrope",
            factor=config.max_model_len / original,
            original_max_position=original,
            short_factor=short,
            long_factor=long,
        )
    return dataclasses.replace(config, rope=rope, windows=(window,) * config.num_layers)


PHI3 = Family(
    name="phi3",
    classes=("Phi3ForCausalLM",),
    read=_read,
    layer=LayerNames(
        q="self_attn.qkv_proj",
        k="self_attn.qkv_proj",
        v="self_attn.qkv_proj",
        gate="mlp.gate_up_proj",
        up="mlp.gate_up_proj",
    ),
    gguf=GGUFFormat(architecture="phi3", partial_rotary=True, adjust=_adjust),
)
