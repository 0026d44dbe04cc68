"""Drives a `CausalLM` over its paged KV as an engine would: any chunks, any batch."""

from __future__ import annotations

import torch
from fakes_paged_batch import PagedSequences
from torch import Tensor

from kv_cache.storage import KVStorage
from model.causal_lm import CausalLM
from text.model_card import ModelCard


class Generation:
    """A model with KV of its own; sequences are named."""

    def __init__(self, model: CausalLM, card: ModelCard, *, num_blocks: int = 64) -> None:
        spec = card.kv_spec(16, str(model.dtype).removeprefix("torch."))
        self._model = model
        self._storage = KVStorage(spec, num_blocks, num_kv_heads_local=len(model.kv_heads))
        self._sequences = PagedSequences(num_blocks=num_blocks, block_size=16)

    @torch.inference_mode()
    def step(self, batch: list[tuple[str, list[int]]]) -> list[Tensor]:
        """Adds tokens to sequences; float32 logits [T, vocab] of each one's."""
        positions, meta = self._sequences.step([(name, len(ids)) for name, ids in batch])
        token_ids = torch.tensor([i for _, ids in batch for i in ids])
        hidden = self._model.forward(token_ids, positions, meta, self._storage)
        counts = [len(ids) for _, ids in batch]
        return list(self._model.logits(hidden).split(counts))  # type: ignore[no-untyped-call]

    def greedy(self, name: str, token_ids: list[int], num_tokens: int) -> list[int]:
        """The most likely continuation, one token a step."""
        output: list[int] = []
        ids = token_ids
        for _ in range(num_tokens):
            [logits] = self.step([(name, ids)])
            ids = [int(logits[-1].argmax())]
            output += ids
        return output
