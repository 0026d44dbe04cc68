"""The embedding of which each rank holds some tokens' rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from tandem_kernels import PackedLinear
from torch import Tensor

from model.tensor_parallel import TensorParallel


@dataclass(frozen=True, eq=False, slots=True)
class VocabParallelEmbedding:
    """Embeddings of token ids, of which this rank holds `tokens`. ids [T] -> [T, h]."""

    table: Tensor | PackedLinear
    """This rank's rows, [tokens, h], or the layer whose weight they are."""
    tokens: range
    tp: TensorParallel

    def __call__(self, token_ids: Tensor) -> Tensor:
        if self.tp.size == 1:
            return self._rows(token_ids)
        local = token_ids - self.tokens.start
        foreign = (local < 0) | (local >= len(self.tokens))  # [T]
        rows = self._rows(local.masked_fill(foreign, 0))
        return self.tp.all_reduce(rows.masked_fill_(foreign.unsqueeze(1), 0))

    def _rows(self, indices: Tensor) -> Tensor:
        if isinstance(self.table, Tensor):
            return F.embedding(indices, self.table)
        return self.table.weight_rows(indices)
