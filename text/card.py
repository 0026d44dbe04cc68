"""The model card: all that anyone needs to know of a model before its weights are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from core.errors import ConfigError
from core.kv_spec import KVGroup, KVSpec
from text.model_source import ModelSource
from text.rope_config import RopeConfig

Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """A decoder of the Llama family: RMSNorm, RoPE, grouped-query attention, SwiGLU.

    Sizes are in elements, lengths in tokens. Raises ConfigError that names the key when the values
    contradict each other.
    """

    name: str
    source: ModelSource
    architecture: Literal["llama"]
    vocab_size: int
    """Rows of the embedding; may exceed the tokenizer's vocabulary (padding)."""
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    rms_norm_eps: float
    rope: RopeConfig
    max_model_len: int
    tie_word_embeddings: bool
    attention_bias: bool
    """The query, key and value projections have a bias."""
    attention_output_bias: bool
    mlp_bias: bool
    sliding_window: int | None
    """A token attends to this many tokens, itself included; None: to all before it."""
    dtype: Dtype
    """The checkpoint's own type; bfloat16 where its weights are quantised."""
    quantization: str
    """`none`, or the type of most weights (`Q4_1`)."""
    bos_token_id: int | None
    eos_token_ids: tuple[int, ...]
    bos_token: str
    """Text of the token, for chat templates; empty if there is none."""
    eos_token: str
    chat_template: str | None
    weights_digest: str

    def __post_init__(self) -> None:
        for key in _POSITIVE:
            if getattr(self, key) <= 0:
                raise ConfigError(f"{self.name}: {key} is {getattr(self, key)}, not positive")
        if self.sliding_window is not None and self.sliding_window <= 0:
            raise ConfigError(f"{self.name}: sliding_window is {self.sliding_window}, not positive")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"{self.name}: num_heads {self.num_heads} is not a multiple of "
                f"num_kv_heads {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ConfigError(f"{self.name}: head_dim {self.head_dim} is odd, RoPE turns pairs")
        for key in ("short_factor", "long_factor", "frequency_factors"):
            factors = getattr(self.rope, key)
            if factors and len(factors) != self.head_dim // 2:
                raise ConfigError(
                    f"{self.name}: rope {key} has {len(factors)} values for head_dim "
                    f"{self.head_dim}; expected {self.head_dim // 2}"
                )

    @property
    def num_parameters(self) -> int:
        """Weights of the model in elements; a tied head counts once."""
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return embeddings + self.num_layers * self._layer_parameters() + self.hidden_size

    def kv_spec(self, block_size: int, dtype: str) -> KVSpec:
        """What the KV of one token is made of; `block_size` in tokens."""
        group = KVGroup(self.num_layers, self.num_kv_heads, self.head_dim, self.sliding_window)
        return KVSpec((group,), block_size, dtype)

    @property
    def rope_description(self) -> str:
        """The part of the compat key that says how positions were rotated into K."""
        return self.rope.description

    def _layer_parameters(self) -> int:
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        attention = self.hidden_size * 2 * (q_size + kv_size)
        mlp = 3 * self.hidden_size * self.intermediate_size
        biases = (
            self.attention_bias * (q_size + 2 * kv_size)
            + self.attention_output_bias * self.hidden_size
            + self.mlp_bias * (2 * self.intermediate_size + self.hidden_size)
        )
        return attention + mlp + biases + 2 * self.hidden_size


_POSITIVE = (
    "vocab_size",
    "hidden_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "intermediate_size",
    "rms_norm_eps",
    "max_model_len",
)
