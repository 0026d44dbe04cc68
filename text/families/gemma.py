"""Gemma 1, 2 and 3 (text): norms with 1 + weight, scaled embeddings, GeGLU.

Gemma 2 adds norms after attention and MLP, softcaps, and windows in every other layer; Gemma 3
normalises queries and keys and has angles of their own in its layers with windows.
"""

from __future__ import annotations

import dataclasses

from core.errors import ConfigError
from text.decoder_config import DecoderConfig
from text.families.family import Family, GGUFFormat, LayerNames
from text.families.settings import base_config, refuse_set, softcap, windows_by_type
from text.fields import Fields
from text.gguf_metadata import GGUFMetadata
from text.huggingface_rope import read_rope
from text.rope_config import RopeConfig

# What the configuration classes assume where the keys are absent
_HEAD_DIM, _WINDOW, _QUERY_SCALAR = 256, 4096, 256
_ATTENTION_CAP, _LOGITS_CAP = 50.0, 30.0
_GLOBAL_THETA, _LOCAL_THETA = 1e6, 1e4
_GEMMA2_PATTERN, _GEMMA3_PATTERN = 2, 6
"""Every second, every sixth layer attends to everything."""
# The 27B models scale by hidden / heads, of which GGUF files say nothing; told by layers, as
# llama.cpp does
_GEMMA2_27B_LAYERS, _GEMMA3_27B_LAYERS = 46, 62


def _read_gemma(config: Fields) -> DecoderConfig:
    return _scaled(_read_any(config, "gemma", "hidden_act"))


def _read_gemma2(config: Fields) -> DecoderConfig:
    base = _read_any(config, "gemma2", "hidden_activation")
    return dataclasses.replace(
        _scaled(base),
        attention_scale=_attention_scale(config),
        attention_softcap=softcap(config, "attn_logit_softcapping", _ATTENTION_CAP),
        logits_softcap=softcap(config, "final_logit_softcapping", _LOGITS_CAP),
        windows=_windows(config, base.num_layers, _GEMMA2_PATTERN),
    )


def _read_gemma3(config: Fields) -> DecoderConfig:
    # transformers reads the key and never uses it; nobody knows what its author meant
    refuse_set(config, "attn_logit_softcapping")
    rope, local_rope = _ropes(config)
    base = _read_any(config, "gemma3", "hidden_activation", rope)
    pattern = config.integer("sliding_window_pattern", _GEMMA3_PATTERN)
    return dataclasses.replace(
        _scaled(base),
        attention_scale=_attention_scale(config),
        logits_softcap=softcap(config, "final_logit_softcapping", 0.0),
        windows=_windows(config, base.num_layers, pattern),
        qk_norm=True,
        local_rope=local_rope,
        # Which, unlike Llama's, already counts the scaling in
        max_model_len=config.integer("max_position_embeddings"),
    )


def _read_any(
    config: Fields, family: str, activation_key: str, rope: RopeConfig | None = None
) -> DecoderConfig:
    refuse_set(config, "use_bidirectional_attention")
    base = base_config(
        config,
        family,
        default_head_dim=_HEAD_DIM,
        default_tied=True,
        activation_key=activation_key,
        default_activation="gelu_pytorch_tanh",
        rope=rope,
    )
    if base.activation == "silu":
        raise ConfigError(f"{config.where}: {activation_key} silu is not supported for Gemma")
    # Gemma 1's files say `gelu` and mean the approximation that it was trained with
    activation = "gelu_tanh" if family == "gemma" else base.activation
    return dataclasses.replace(base, activation=activation, mlp_bias=False)


def _scaled(config: DecoderConfig) -> DecoderConfig:
    return dataclasses.replace(config, embedding_scale=config.hidden_size**0.5)


def _attention_scale(config: Fields) -> float:
    scalar = config.number("query_pre_attn_scalar", _QUERY_SCALAR)
    if scalar <= 0:
        raise ConfigError(f"{config.where}: query_pre_attn_scalar is {scalar}, not positive")
    return float(scalar**-0.5)


def _windows(config: Fields, num_layers: int, pattern: int) -> tuple[int | None, ...]:
    no_window = "sliding_window" in config.values and not config.has("sliding_window")
    window = None if no_window else config.integer("sliding_window", _WINDOW)
    types = [
        "sliding_attention" if is_local else "full_attention"
        for is_local in _local_layers(num_layers, pattern)
    ]
    return windows_by_type(config, window, types)


def _local_layers(num_layers: int, pattern: int) -> list[bool]:
    """All but every `pattern`-th."""
    if pattern <= 0:
        raise ConfigError(f"sliding_window_pattern is {pattern}, not positive")
    return [(layer + 1) % pattern != 0 for layer in range(num_layers)]


def _ropes(config: Fields) -> tuple[RopeConfig, RopeConfig]:
    """Angles of the global and the local layers, in either spelling (see huggingface_rope)."""
    new = config.section("rope_parameters")
    if not {"full_attention", "sliding_attention"} & set(new.values):
        local_theta = config.number("rope_local_base_freq", _LOCAL_THETA)
        length = config.integer("max_position_embeddings")
        local = RopeConfig(theta=local_theta, original_max_position=length)
        return read_rope(config, default_theta=_GLOBAL_THETA), local
    return (
        read_rope(config, new.section("full_attention"), default_theta=_GLOBAL_THETA),
        read_rope(config, new.section("sliding_attention"), default_theta=_LOCAL_THETA),
    )


def _adjust_gemma(config: DecoderConfig, fields: Fields, metadata: GGUFMetadata) -> DecoderConfig:
    return dataclasses.replace(_scaled(config), activation="gelu_tanh")


def _adjust_gemma2(config: DecoderConfig, fields: Fields, metadata: GGUFMetadata) -> DecoderConfig:
    return dataclasses.replace(
        _adjust_gemma(config, fields, metadata),
        attention_scale=_gguf_scale(config, _GEMMA2_27B_LAYERS),
        attention_softcap=fields.number("gemma2.attn_logit_softcapping", _ATTENTION_CAP),
        logits_softcap=fields.number("gemma2.final_logit_softcapping", _LOGITS_CAP),
        windows=_gguf_windows(config, fields, "gemma2", _GEMMA2_PATTERN),
    )


def _adjust_gemma3(config: DecoderConfig, fields: Fields, metadata: GGUFMetadata) -> DecoderConfig:
    local_theta = fields.number("gemma3.rope.freq_base_swa", _LOCAL_THETA)
    return dataclasses.replace(
        _adjust_gemma(config, fields, metadata),
        attention_scale=_gguf_scale(config, _GEMMA3_27B_LAYERS),
        logits_softcap=fields.number("gemma3.final_logit_softcapping", 0.0),
        windows=_gguf_windows(config, fields, "gemma3", _GEMMA3_PATTERN),
        local_rope=RopeConfig(theta=local_theta, original_max_position=config.max_model_len),
    )


def _gguf_scale(config: DecoderConfig, num_layers_27b: int) -> float:
    if config.num_layers == num_layers_27b:
        return float((config.hidden_size / config.num_heads) ** -0.5)
    return float(config.head_dim**-0.5)


def _gguf_windows(
    config: DecoderConfig, fields: Fields, key: str, pattern: int
) -> tuple[int | None, ...]:
    window = fields.integer(f"{key}.attention.sliding_window", _WINDOW) or None
    # Either a flag for every layer or a period
    stated_key = f"{key}.attention.sliding_window_pattern"
    stated = fields.values.get(stated_key)
    is_local = (
        stated
        if isinstance(stated, list)
        else _local_layers(config.num_layers, fields.integer(stated_key, pattern))
    )
    return tuple(window if local else None for local in is_local)


_GEMMA2_LAYER = LayerNames(
    post_attention_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    post_mlp_norm="post_feedforward_layernorm",
)
GEMMA = Family(
    name="gemma",
    classes=("GemmaForCausalLM",),
    read=_read_gemma,
    layer=LayerNames(),
    norm_plus_one=True,
    gguf=GGUFFormat(architecture="gemma", adjust=_adjust_gemma),
)
GEMMA2 = Family(
    name="gemma2",
    classes=("Gemma2ForCausalLM",),
    read=_read_gemma2,
    layer=_GEMMA2_LAYER,
    norm_plus_one=True,
    gguf=GGUFFormat(architecture="gemma2", adjust=_adjust_gemma2),
)
GEMMA3 = Family(
    name="gemma3",
    classes=("Gemma3ForCausalLM",),
    read=_read_gemma3,
    layer=dataclasses.replace(_GEMMA2_LAYER, q_norm="self_attn.q_norm", k_norm="self_attn.k_norm"),
    norm_plus_one=True,
    gguf=GGUFFormat(architecture="gemma3", adjust=_adjust_gemma3),
)
