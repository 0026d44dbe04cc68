"""transformers' own reading of the default model's GGUF file, as a plain float32 Llama."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, LlamaForCausalLM, PreTrainedModel
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint


def load_oracle(path: Path) -> PreTrainedModel:
    """Dequantised by transformers' code, put into a plain model: it can't run GGUF by itself."""
    config = AutoConfig.from_pretrained(str(path.parent), gguf_file=path.name)
    with torch.device("meta"):
        shapes = LlamaForCausalLM(config)
    read: Callable[..., dict[str, Any]] = load_gguf_checkpoint
    weights = read(str(path), return_tensors=True, model_to_load=shapes)["tensors"]
    oracle: PreTrainedModel = LlamaForCausalLM.from_pretrained(
        None, config=config, state_dict=weights
    )
    return oracle


@dataclass(frozen=True)
class Opinion:
    """What the oracle thinks of an output, position by position."""

    best: list[int]
    """Its own greedy tokens."""
    shortfall: list[float]
    """How far the output's token lies below its best logit."""
    logprobs: Tensor  # [num_tokens, vocab] float32

    @staticmethod
    def of(oracle: PreTrainedModel, prompt: list[int], output: list[int]) -> Opinion:
        """One pass over prompt and output: each position sees what the output's greedy run saw."""
        num_tokens = len(output)
        ids = torch.tensor([prompt + output[:-1]])
        with torch.inference_mode():
            logits = oracle.forward(ids, logits_to_keep=num_tokens).logits[0]
        best = logits.max(-1)  # [num_tokens]
        taken = logits.gather(-1, torch.tensor(output)[:, None])[:, 0]
        shortfall = (best.values - taken).tolist()
        return Opinion(best.indices.tolist(), shortfall, logits.log_softmax(-1))
