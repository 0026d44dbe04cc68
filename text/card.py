"""The model card: all that anyone needs to know of a model before its weights are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from text.decoder_config import DecoderConfig
from text.decoder_tensors import decoder_tensors
from text.model_source import ModelSource

Dtype = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard(DecoderConfig):
    """A decoder, where its weights lie, and what its tokenizer and chats need to know."""

    source: ModelSource
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
    generation_config: Mapping[str, float] = field(default_factory=dict, hash=False)
    """What the model's authors would have sampling be: see `GenerationDefaults`."""
    weights_digest: str

    @property
    def num_parameters(self) -> int:
        """Weights of the model in elements; a tied head counts once."""
        return sum(math.prod(shape) for shape in decoder_tensors(self).values())
