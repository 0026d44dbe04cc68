"""What tells one family of decoders from another, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from text.decoder_config import DecoderConfig
from text.fields import Fields
from text.gguf_metadata import GGUFMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerNames:
    """Names of a layer's modules below its prefix; None: the family has no such module.

    Modules that share a name are stacked in one tensor, in the order of the fields.
    """

    input_norm: str = "input_layernorm"
    q: str = "self_attn.q_proj"
    k: str = "self_attn.k_proj"
    v: str = "self_attn.v_proj"
    output: str = "self_attn.o_proj"
    q_norm: str | None = None
    """Only where the model's `qk_norm` says so."""
    k_norm: str | None = None
    post_attention_norm: str | None = None
    mlp_norm: str | None = "post_attention_layernorm"
    """None: attention and MLP both read the input norm's result."""
    gate: str | None = "mlp.gate_proj"
    """None: the MLP has no gate."""
    up: str = "mlp.up_proj"
    down: str = "mlp.down_proj"
    post_mlp_norm: str | None = None

    @property
    def norms(self) -> tuple[str, ...]:
        """Of the hidden size, all that there are."""
        names = (
            self.input_norm,
            self.post_attention_norm,
            self.mlp_norm,
            self.post_mlp_norm,
        )
        return tuple(name for name in names if name is not None)


def _as_it_is(config: DecoderConfig, fields: Fields, metadata: GGUFMetadata) -> DecoderConfig:
    return config


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFFormat:
    """How llama.cpp stores the family."""

    architecture: str
    interleaved_heads: bool = False
    """Rows of q and k have the elements that are rotated together side by side."""
    partial_rotary: bool = False
    """Its heads may be rotated in part."""
    adjust: Callable[[DecoderConfig, Fields, GGUFMetadata], DecoderConfig] = _as_it_is
    """Fills in what the metadata says or means, besides what all architectures have in common."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of decoders."""

    name: str
    classes: tuple[str, ...]
    """What config.json may call it in `architectures`."""
    read: Callable[[Fields], DecoderConfig]
    """From config.json. Raises ConfigError naming the key that is wrong or not supported."""
    layer: LayerNames
    prefix: str = "model.layers"
    embedding: str = "model.embed_tokens"
    final_norm: str = "model.norm"
    head: str = "lm_head"
    layer_norm: bool = False
    """Norms are LayerNorms with a bias; else RMSNorms."""
    norm_plus_one: bool = False
    """Norms multiply with 1 + weight."""
    gguf: GGUFFormat | None = None

    def layer_prefix(self, layer: int) -> str:
        return f"{self.prefix}.{layer}."
