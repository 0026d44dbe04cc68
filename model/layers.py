"""Linear and embedding layers, each holding one rank's part of its weight.

    column parallel   rows of [out, in] are divided: every rank has some outputs, no communication
    row parallel      columns of [out, in] are divided: every rank has a summand of all outputs

so an attention or an MLP (column parallel, then row parallel) costs one all-reduce.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tandem_kernels import PackedLinear
from torch import Tensor

from model.tensor_parallel import TensorParallel


@dataclass(frozen=True, eq=False, slots=True)
class ColumnParallelLinear:
    """y = x W^T + b for this rank's rows of W; also of several matrices stacked (QKV, gate and up).

    [T, in] -> [T, out_local].
    """

    linear: PackedLinear

    def __call__(self, x: Tensor) -> Tensor:
        return self.linear(x)


@dataclass(frozen=True, eq=False, slots=True)
class RowParallelLinear:
    """y = sum over ranks of x W^T, plus b. [T, in_local] -> [T, out].

    Only rank 0's `linear` has the bias: the sum must contain it once.
    """

    linear: PackedLinear
    tp: TensorParallel

    def __call__(self, x: Tensor) -> Tensor:
        return self.tp.all_reduce(self.linear(x))


@dataclass(frozen=True, eq=False, slots=True)
class VocabParallelEmbedding:
    """Embeddings of token ids, of which this rank holds `tokens`. ids [T] -> [T, h].

    `rows` looks up this rank's own, counted from 0: [T] -> [T, h].
    """

    rows: Callable[[Tensor], Tensor]
    tokens: range
    tp: TensorParallel

    def __call__(self, token_ids: Tensor) -> Tensor:
        if self.tp.size == 1:
            return self.rows(token_ids)
        local = token_ids - self.tokens.start
        foreign = (local < 0) | (local >= len(self.tokens))  # [T]
        rows = self.rows(local.masked_fill(foreign, 0))
        return self.tp.all_reduce(rows.masked_fill_(foreign.unsqueeze(1), 0))


@dataclass(frozen=True, eq=False, slots=True)
class ParallelHead:
    """Logits of the whole vocabulary on every rank. [R, h] -> float32 [R, vocab].

    `linear` has float32 results, [R, h] -> [R, vocab_local].
    """

    linear: PackedLinear
    vocab_size: int
    tp: TensorParallel

    def __call__(self, hidden: Tensor) -> Tensor:
        return self.tp.all_gather_columns(self.linear(hidden), self.vocab_size)
