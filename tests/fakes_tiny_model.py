"""Small random models of transformers, saved as checkpoints: an oracle and a model to serve."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from text.model_card import ModelCard, load_card
from text.model_source import ModelSource

SHAPE = {
    "vocab_size": 131,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@dataclass(frozen=True)
class TinyModel:
    """A checkpoint on disk and transformers' model of the same weights, in float32."""

    card: ModelCard
    oracle: PreTrainedModel

    def logits(self, token_ids: list[int]) -> Tensor:
        """The oracle's, float32 [T, vocab]."""
        with torch.inference_mode():
            return oracle_logits(self.oracle, token_ids)

    def greedy(self, token_ids: list[int], num_tokens: int) -> list[int]:
        """The oracle's continuation, end of text or not."""
        return oracle_greedy(self.oracle, token_ids, num_tokens)


def oracle_logits(oracle: PreTrainedModel, token_ids: list[int], **cached: Any) -> Tensor:
    """float32 [T, vocab] of one forward pass."""
    logits: Tensor = oracle.forward(torch.tensor([token_ids]), **cached).logits[0]
    return logits


def oracle_greedy(oracle: PreTrainedModel, token_ids: list[int], num_tokens: int) -> list[int]:
    """Token by token with transformers' own cache; generate() would stop at the end of text."""
    cache, output, ids = DynamicCache(config=oracle.config), list[int](), token_ids
    with torch.inference_mode():
        for _ in range(num_tokens):
            ids = [int(oracle_logits(oracle, ids, cache=cache)[-1].argmax())]
            output += ids
    return output


def oracle_continuation(
    oracle: PreTrainedModel, token_ids: list[int], num_tokens: int
) -> tuple[list[int], Tensor]:
    """The greedy continuation, and float32 [T + num_tokens, vocab] of the prompt's T tokens and of
    all of its own."""
    cache, ids = DynamicCache(config=oracle.config), token_ids
    output, rows = list[int](), list[Tensor]()
    with torch.inference_mode():
        for _ in range(num_tokens + 1):
            rows.append(oracle_logits(oracle, ids, cache=cache))
            ids = [int(rows[-1][-1].argmax())]
            output += ids
    return output[:-1], torch.cat(rows)


def llama(directory: Path, **settings: Any) -> TinyModel:
    """A Llama of a few thousand weights; see `make`."""
    return make("Llama", directory, **settings)


def make(
    family: str,
    directory: Path,
    *,
    dtype: torch.dtype = torch.float32,
    shard: str = "1GB",
    **settings: Any,
) -> TinyModel:
    """A model of transformers' `<family>ForCausalLM`; `settings` are its configuration's."""
    torch.manual_seed(1)
    config_name = "Gemma3TextConfig" if family == "Gemma3" else f"{family}Config"
    config = getattr(transformers, config_name)(**(SHAPE | settings))
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    return _saved(model, directory, dtype, shard)


def _saved(model: PreTrainedModel, directory: Path, dtype: torch.dtype, shard: str) -> TinyModel:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            # Large enough that logits differ clearly, biases and norms included
            scale = 0.5 if name.endswith("norm.weight") else 0.15
            weight.copy_(torch.randn_like(weight) * scale + (scale == 0.5))
    torch.nn.Module.to(model, dtype)
    model.save_pretrained(directory, max_shard_size=shard)
    card = load_card(ModelSource("huggingface", directory, "tiny"))
    return TinyModel(card, torch.nn.Module.float(model))
