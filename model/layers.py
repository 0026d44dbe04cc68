"""Linear and embedding layers, each holding one rank's part of its weight.

    column parallel   rows of [out, in] are divided: every rank has some outputs, no communication
    row parallel      columns of [out, in] are divided: every rank has a summand of all outputs

so an attention or an MLP (column parallel, then row parallel) costs one all-reduce.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from model.tensor_parallel import TensorParallel


@dataclass(frozen=True, eq=False, slots=True)
class ColumnParallelLinear:
    """y = x W^T + b for this rank's rows of W; also of several matrices stacked (QKV, gate and up).

    weight [out_local, in], bias [out_local]; [T, in] -> [T, out_local].
    """

    weight: Tensor
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)


@dataclass(frozen=True, eq=False, slots=True)
class RowParallelLinear:
    """y = sum over ranks of x W^T, plus b. weight [out, in_local]; [T, in_local] -> [T, out].

    Only rank 0 holds the bias: the sum must contain it once.
    """

    weight: Tensor
    bias: Tensor | None
    tp: TensorParallel

    def __post_init__(self) -> None:
        assert self.bias is None or self.tp.rank == 0

    def __call__(self, x: Tensor) -> Tensor:
        return self.tp.all_reduce(F.linear(x, self.weight, self.bias))


@dataclass(frozen=True, eq=False, slots=True)
class VocabParallelEmbedding:
    """Rows of the embedding for token ids `tokens`; weight [len(tokens), h], ids [T] -> [T, h]."""

    weight: Tensor
    tokens: range
    tp: TensorParallel

    def __call__(self, token_ids: Tensor) -> Tensor:
        if self.tp.size == 1:
            return F.embedding(token_ids, self.weight)
        local = token_ids - self.tokens.start
        foreign = (local < 0) | (local >= len(self.tokens))  # [T]
        rows = F.embedding(local.masked_fill(foreign, 0), self.weight)
        return self.tp.all_reduce(rows.masked_fill_(foreign.unsqueeze(1), 0))


@dataclass(frozen=True, eq=False, slots=True)
class ParallelHead:
    """Logits of the whole vocabulary on every rank. weight [vocab_local, h]; [R, h] -> [R, vocab].

    May share its weight with the embedding (tied).
    """

    weight: Tensor
    vocab_size: int
    tp: TensorParallel

    def __call__(self, hidden: Tensor) -> Tensor:
        logits = F.linear(hidden, self.weight)  # [R, vocab_local]
        return self.tp.all_gather_columns(logits, self.vocab_size).float()
