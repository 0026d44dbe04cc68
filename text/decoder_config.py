"""What a decoder of any family computes: its sizes and settings, without its weights."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any, Literal

from core.errors import ConfigError
from core.kv_spec import KVGroup, KVSpec
from text.rope_config import RopeConfig

Activation = Literal["silu", "gelu", "gelu_tanh"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """A decoder with rotary positions and grouped-query attention.

    Sizes are in elements, lengths in tokens. Raises ConfigError that names the key when the values
    contradict each other.
    """

    name: str
    """The model's, for messages."""
    architecture: str
    """The family (`llama`), which says what tensors there are."""
    vocab_size: int
    """Rows of the embedding; may exceed the tokenizer's vocabulary (padding)."""
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotary_dim: int
    """The first so many elements of a head are rotated."""
    intermediate_size: int
    activation: Activation
    norm_eps: float
    rope: RopeConfig
    local_rope: RopeConfig | None = None
    """Of the layers with a window; None: `rope` as well."""
    windows: tuple[int | None, ...]
    """Of each layer: a token attends to this many tokens, itself included; None: to all before."""
    max_model_len: int
    tie_word_embeddings: bool
    attention_bias: bool
    """The query, key and value projections have a bias."""
    attention_output_bias: bool
    mlp_bias: bool
    head_bias: bool = False
    qk_norm: bool = False
    """Queries and keys are normalised, each head by itself."""
    attention_scale: float
    """Scores are multiplied with it."""
    attention_softcap: float = 0.0
    """Scores s become softcap * tanh(s / softcap); 0: as they are."""
    logits_softcap: float = 0.0
    embedding_scale: float = 1.0

    def __post_init__(self) -> None:
        for key in _POSITIVE:
            if getattr(self, key) <= 0:
                raise ConfigError(f"{self.name}: {key} is {getattr(self, key)}, not positive")
        for key in ("attention_softcap", "logits_softcap"):
            if getattr(self, key) < 0:
                raise ConfigError(f"{self.name}: {key} is {getattr(self, key)}, negative")
        if len(self.windows) != self.num_layers:
            raise ConfigError(
                f"{self.name}: {len(self.windows)} layers have a type, num_layers is "
                f"{self.num_layers}"
            )
        for window in self.windows:
            if window is not None and window <= 0:
                raise ConfigError(f"{self.name}: sliding_window is {window}, not positive")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"{self.name}: num_heads {self.num_heads} is not a multiple of "
                f"num_kv_heads {self.num_kv_heads}"
            )
        self._check_rotation()

    def kv_spec(self, block_size: int, dtype: str) -> KVSpec:
        """What the KV of one token is made of; `block_size` in tokens.

        Groups are runs of layers with the same window, in the order of the layers.
        """
        groups = tuple(
            KVGroup(len(list(run)), self.num_kv_heads, self.head_dim, window)
            for window, run in itertools.groupby(self.windows)
        )
        return KVSpec(groups, block_size, dtype)

    @property
    def rope_description(self) -> str:
        """The part of the compat key that says how positions were rotated into K."""
        described = self.rope.description
        if self.local_rope is not None:
            described += f", local {self.local_rope.description}"
        if self.rope.scaling == "longrope":
            # Which factors are used follows from the lengths that are served (model/rope.py)
            described += f", {self.max_model_len > self.rope.original_max_position}"
        return described

    def computing_settings(self) -> dict[str, Any]:
        """Settings that no tensor's shape and no other part of the compat key shows."""
        return {key: getattr(self, key) for key in _COMPUTING}

    def settings(self) -> dict[str, Any]:
        """All fields by their names."""
        names = (field.name for field in dataclasses.fields(DecoderConfig))
        return {name: getattr(self, name) for name in names}

    def _check_rotation(self) -> None:
        if self.head_dim % 2:
            raise ConfigError(f"{self.name}: head_dim {self.head_dim} is odd, RoPE turns pairs")
        if self.rotary_dim % 2 or self.rotary_dim > self.head_dim:
            raise ConfigError(
                f"{self.name}: {self.rotary_dim} of head_dim {self.head_dim} elements can't be "
                "rotated in pairs (partial_rotary_factor)"
            )
        for rope in (self.rope, self.local_rope or self.rope):
            if rope.scaling == "longrope" and not (rope.short_factor and rope.long_factor):
                raise ConfigError(f"{self.name}: longrope needs short_factor and long_factor")
            for key in ("short_factor", "long_factor", "frequency_factors"):
                factors = getattr(rope, key)
                if factors and len(factors) != self.rotary_dim // 2:
                    raise ConfigError(
                        f"{self.name}: rope {key} has {len(factors)} values, but "
                        f"{self.rotary_dim} elements of a head are rotated; expected "
                        f"{self.rotary_dim // 2}"
                    )


_POSITIVE = (
    "vocab_size",
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "rotary_dim",
    "intermediate_size",
    "norm_eps",
    "max_model_len",
    "attention_scale",
    "embedding_scale",
)
_COMPUTING = (
    "architecture",
    "num_layers",
    "num_heads",
    "rotary_dim",
    "activation",
    "norm_eps",
    "attention_scale",
    "attention_softcap",
    "logits_softcap",
    "embedding_scale",
)
