"""Runs steps on this rank: model and KV storage; and where tokens are sampled, a sampler."""

from __future__ import annotations

import numpy as np
import torch
from tandem_kernels import AttentionMeta, StepProgram

from engine.batch import StepInput
from engine.grammar_masks import GrammarMasks
from engine.greedy import only_largest
from engine.profile_ranges import profile_ranges
from engine.row_failure import RowsFailedError, explained
from engine.sample_row import SampleRow
from engine.sampler import Sampled, TokenSampler
from kv_cache.storage import KVStorage
from model.causal_lm import CausalLM


class RankRunner:
    """Computes the tokens of a step and writes their KV."""

    def __init__(self, model: CausalLM, storage: KVStorage, *, device: torch.device) -> None:
        self._model = model
        self._storage = storage
        self._device = device
        self._on_cpu = device.type == "cpu"
        self._range = profile_ranges()

    @property
    def dtype(self) -> str:
        """The type that the model computes in."""
        return str(self._model.dtype).removeprefix("torch.")

    @property
    def program(self) -> StepProgram:
        """What computes the layers, for those who measure it."""
        return self._model.program

    @torch.inference_mode()
    def compute(self, step: StepInput, only_largest: torch.Tensor | None = None) -> torch.Tensor:
        """Writes the step's KV. -> float32 [R, vocab] of its `logits_rows`.

        Of rows marked in `only_largest`, uint8 [R], only the largest logits are needed.
        """
        arguments = (
            self._tensor(step.token_ids),
            self._tensor(step.positions),
            self._meta(step),
            self._storage,
            self._tensor(step.logits_rows),
        )
        with self._range("forward"):
            if len(step.logits_rows):
                return self._model.step(*arguments, only_largest)
            return self._model.forward(*arguments)

    def _meta(self, step: StepInput) -> AttentionMeta:
        return AttentionMeta(
            query_starts=self._tensor(step.query_starts),
            context_lens=self._tensor(step.context_lens),
            block_tables=self._tensor(step.block_tables),
            slot_mapping=self._tensor(step.slot_mapping),
            num_decode=step.num_decode,
            max_context_len=int(step.context_lens.max()),
        )

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._on_cpu else tensor.to(self._device, non_blocking=True)


class ModelRunner(RankRunner):
    """An `Executor`: samples what was computed, on a worker's only rank or its leader."""

    def __init__(
        self,
        model: CausalLM,
        storage: KVStorage,
        sampler: TokenSampler,
        *,
        device: torch.device,
    ) -> None:
        super().__init__(model, storage, device=device)
        self._sampler = sampler
        self._masks = GrammarMasks()

    def execute(self, step: StepInput, rows: list[SampleRow]) -> list[Sampled]:
        """One token for each row, in order. Rows may share logits, as choices of one prompt do."""
        masks_ready = self._masks.begin(rows)
        with torch.inference_mode():
            logits = self.compute(step, only_largest(rows, len(step.logits_rows)))
            masks_ready()
            try:
                return self.sample(logits, rows) if rows else []
            except RowsFailedError as error:
                raise explained(error, rows, logits) from None

    def sample(self, logits: torch.Tensor, rows: list[SampleRow]) -> list[Sampled]:
        """`execute`'s second half."""
        with self._range("sampling"):
            return self._sampler.sample(logits, rows)


def profile_step(num_decode: int, chunk_tokens: int, block_size: int) -> StepInput:
    """The largest step the schedulers may plan: decode rows and one full chunk of a prompt.

    Every row writes to slots of its own and reads the chunk's blocks, so that it runs on a storage
    of `profile_blocks` blocks.
    """
    num_blocks = profile_blocks(num_decode, chunk_tokens, block_size)
    lengths = np.array([1] * num_decode + [chunk_tokens], dtype=np.int32)
    query_starts = np.zeros(len(lengths) + 1, dtype=np.int32)
    np.cumsum(lengths, out=query_starts[1:])
    total = int(query_starts[-1])
    return StepInput(
        token_ids=np.zeros(total, dtype=np.int64),
        positions=np.concatenate([np.zeros(num_decode), np.arange(chunk_tokens)]).astype(np.int64),
        query_starts=query_starts,
        context_lens=lengths,
        block_tables=np.tile(np.arange(num_blocks, dtype=np.int32), (len(lengths), 1)),
        slot_mapping=np.arange(total, dtype=np.int64),
        logits_rows=(query_starts[1:] - 1).astype(np.int64),
        num_decode=num_decode,
    )


def profile_blocks(num_decode: int, chunk_tokens: int, block_size: int) -> int:
    """Blocks of the storage that `profile_step` runs on."""
    return -(-(num_decode + chunk_tokens) // block_size)
