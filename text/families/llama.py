"""Llama and Mistral: RMSNorm, RoPE, grouped-query attention, SwiGLU."""

from __future__ import annotations

import dataclasses

from text.decoder_config import DecoderConfig
from text.families.family import Family, GGUFFormat, LayerNames
from text.families.settings import base_config
from text.fields import Fields
from text.gguf_metadata import GGUFMetadata

# What MistralConfig assumes where the key is absent; an explicit null means no window.
_MISTRAL_WINDOW = 4096


def _read_llama(config: Fields) -> DecoderConfig:
    # Llama's first checkpoints lack num_key_value_heads and mean multi-head attention.
    return base_config(config, "llama", default_kv_heads=config.integer("num_attention_heads"))


def _read_mistral(config: Fields) -> DecoderConfig:
    base = base_config(config, "mistral")
    no_window = "sliding_window" in config.values and not config.has("sliding_window")
    window = None if no_window else config.integer("sliding_window", _MISTRAL_WINDOW)
    return dataclasses.replace(base, windows=(window,) * base.num_layers)


def _adjust_llama(config: DecoderConfig, fields: Fields, metadata: GGUFMetadata) -> DecoderConfig:
    # Mistral's GGUF files are of this architecture too
    window = fields.integer("llama.attention.sliding_window", 0) or None
    return dataclasses.replace(config, windows=(window,) * config.num_layers)


LLAMA = Family(
    name="llama",
    classes=("LlamaForCausalLM",),
    read=_read_llama,
    layer=LayerNames(),
    gguf=GGUFFormat(architecture="llama", interleaved_heads=True, adjust=_adjust_llama),
)
MISTRAL = Family(
    name="mistral",
    classes=("MistralForCausalLM",),
    read=_read_mistral,
    layer=LayerNames(),
)
