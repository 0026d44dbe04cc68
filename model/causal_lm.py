"""A decoder over paged KV, one rank of it.

Batches are flattened: T tokens of any number of sequences, which only attention tells apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from tandem_kernels import AttentionMeta, Decoder, Kernels, LayerCache, StepProgram
from torch import Tensor

from kv_cache.storage import KVStorage
from model.op_by_op import OpByOp
from model.tensor_parallel import TensorParallel


class CausalLM:
    """One rank of a decoder. Stateless: all that a sequence leaves behind is in the KV storage.

    All ranks of a group must call with the same arguments, in the same order.
    """

    def __init__(
        self,
        decoder: Decoder,
        kernels: Kernels,
        tp: TensorParallel,
        *,
        vocab_size: int,
        kv_heads: range,
    ) -> None:
        self.kv_heads = kv_heads
        """This rank's KV heads, by their numbers in the whole model."""
        self.dtype = decoder.final_norm.weight.dtype
        self.device = decoder.final_norm.weight.device
        self._decoder = decoder
        self._storage: KVStorage | None = None
        self._caches: list[LayerCache] = []
        # Ranks must meet within a layer, which one call for all layers cannot do
        program = kernels.program(decoder) if tp.size == 1 else None
        self._program: StepProgram = program or OpByOp(decoder, kernels, tp, vocab_size=vocab_size)

    @property
    def program(self) -> StepProgram:
        """What computes the layers."""
        return self._program

    @property
    def window(self) -> int | None:
        """The largest sliding window in tokens; None where any layer has full attention."""
        windows = [layer.window for layer in self._decoder.layers]
        return None if None in windows else max(w for w in windows if w is not None)

    @property
    def max_positions(self) -> int:
        """Positions for which there are angles."""
        return self._decoder.cos_sin[0].shape[0]

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        meta: AttentionMeta,
        storage: KVStorage,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Writes the KV of T tokens and returns their hidden states, ready for `logits`.

        token_ids, positions int64 [T] in the order of `meta`; -> [T, hidden], or the `rows` int64
        [R] of it only, [R, hidden].
        """
        return self._program.forward(token_ids, positions, meta, self._caches_of(storage), rows)

    def step(
        self,
        token_ids: Tensor,
        positions: Tensor,
        meta: AttentionMeta,
        storage: KVStorage,
        rows: Tensor,
        only_largest: Tensor | None = None,
    ) -> Tensor:
        """`logits` of `forward`. -> float32 [R, vocab]; see `StepProgram.step`."""
        caches = self._caches_of(storage)
        return self._program.step(token_ids, positions, meta, caches, rows, only_largest)

    def logits(self, hidden: Tensor) -> Tensor:
        """Scores of the next token. [R, hidden] -> float32 [R, vocab], complete on every rank."""
        return self._program.logits(hidden)

    def _caches_of(self, storage: KVStorage) -> Sequence[LayerCache]:
        """The same object for the same storage, which is what a program remembers things by."""
        if self._storage is not storage:
            assert storage.num_kv_heads == len(self.kv_heads)
            self._storage = storage
            self._caches = [storage.layer(i) for i in range(len(self._decoder.layers))]
        return self._caches
