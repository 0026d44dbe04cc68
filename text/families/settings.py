"""Settings that most families' config.json have in common, read with each family's defaults."""

from __future__ import annotations

from collections.abc import Sequence

from core.errors import ConfigError
from text.decoder_config import Activation, DecoderConfig
from text.fields import Fields
from text.huggingface_rope import partial_rotary_factor, read_rope, scaled_model_len
from text.rope_config import RopeConfig

_ACTIVATIONS: dict[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}


def base_config(
    config: Fields,
    architecture: str,
    *,
    default_kv_heads: int | None = None,
    default_head_dim: int | None = None,
    default_rotary_factor: float | None = None,
    default_tied: bool = False,
    activation_key: str = "hidden_act",
    default_activation: str = "silu",
    eps_key: str = "rms_norm_eps",
    default_eps: float = 1e-6,
    rope: RopeConfig | None = None,
) -> DecoderConfig:
    """A decoder like Llama's; the family replaces what is otherwise.

    `default_rotary_factor` None: the family rotates whole heads. `rope`: where the family states it
    in a way of its own.
    """
    num_layers = config.integer("num_hidden_layers")
    num_heads, hidden_size = config.integer("num_attention_heads"), config.integer("hidden_size")
    head_dim = _head_dim(config, hidden_size, num_heads, default_head_dim)
    rope = rope or read_rope(config)
    return DecoderConfig(
        name=config.where,
        architecture=architecture,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=config.integer("num_key_value_heads", default_kv_heads),
        head_dim=head_dim,
        rotary_dim=_rotary_dim(config, head_dim, default_rotary_factor),
        intermediate_size=config.integer("intermediate_size"),
        activation=_activation(config, activation_key, default_activation),
        norm_eps=config.number(eps_key, default_eps),
        rope=rope,
        windows=(None,) * num_layers,
        max_model_len=scaled_model_len(rope, config.integer("max_position_embeddings")),
        tie_word_embeddings=config.flag("tie_word_embeddings", default_tied),
        attention_bias=config.flag("attention_bias", False),
        attention_output_bias=config.flag("attention_bias", False),
        mlp_bias=config.flag("mlp_bias", False),
        attention_scale=max(head_dim, 1) ** -0.5,
    )


def windows_by_type(
    config: Fields, window: int | None, default_types: Sequence[str]
) -> tuple[int | None, ...]:
    """Each layer's window, from `layer_types` where config.json has it.

    Raises ConfigError for an unknown type, and where a sliding layer has no window.
    """
    types = config.texts("layer_types") if config.has("layer_types") else default_types
    by_type = {"full_attention": None, "sliding_attention": window}
    unknown = sorted(set(types) - set(by_type))
    if unknown:
        raise ConfigError(
            f"{config.where}: layer_types {', '.join(unknown)} are not supported; supported: "
            f"{', '.join(by_type)}"
        )
    if window is None and "sliding_attention" in types:
        raise ConfigError(f"{config.where}: layer_types has sliding layers, sliding_window is null")
    return tuple(by_type[kind] for kind in types)


def softcap(config: Fields, key: str, default: float) -> float:
    """0 where the key is null: no cap. Absent, it is the family's `default`."""
    explicit_null = key in config.values and not config.has(key)
    return 0.0 if explicit_null else config.number(key, default)


def refuse_set(config: Fields, *keys: str) -> None:
    """Raises ConfigError if one of the keys has a value other than false and null."""
    for key in keys:
        if config.values.get(key):
            raise ConfigError(f"{config.where}: {key} {config.values[key]} is not supported")


def _activation(config: Fields, key: str, default: str) -> Activation:
    name = config.text(key, default)
    if name not in _ACTIVATIONS:
        raise ConfigError(
            f"{config.where}: {key} {name!r} is not supported; supported: "
            f"{', '.join(sorted(_ACTIVATIONS))}"
        )
    return _ACTIVATIONS[name]


def _head_dim(config: Fields, hidden_size: int, num_heads: int, default: int | None) -> int:
    if config.has("head_dim"):
        return config.integer("head_dim")
    if default is not None:
        return default
    if num_heads <= 0 or hidden_size % num_heads:
        raise ConfigError(
            f"{config.where}: hidden_size {hidden_size} is not a multiple of "
            f"num_attention_heads {num_heads}"
        )
    return hidden_size // num_heads


def _rotary_dim(config: Fields, head_dim: int, default_factor: float | None) -> int:
    factor = partial_rotary_factor(config, 1.0 if default_factor is None else default_factor)
    if default_factor is None and factor != 1.0:
        raise ConfigError(
            f"{config.where}: partial_rotary_factor other than 1 is not supported for this model"
        )
    return int(head_dim * factor)
