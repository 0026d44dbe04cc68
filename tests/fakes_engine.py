"""A tiny deterministic "model" whose next token depends on its whole context, read through block
tables.

It stores token ids where KV would lie, so a wrong, stale or unwritten block is a wrong next token.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from core.request import TokenLogprobs
from engine.batch import StepInput
from engine.sample_row import SampleRow
from engine.sampler import Sampled

VOCAB_SIZE = 1_000
UNWRITTEN = -1


def next_token(context: Sequence[int], seed: int, choice: int) -> int:
    """The answer every correct path must give: a hash of all tokens, the seed and the choice."""
    state = 1_469_598_103_934_665_603 ^ (seed * 31 + choice)
    for token in context:
        state = ((state ^ (int(token) + 1)) * 1_099_511_628_211) % (1 << 64)
    return 3 + (state >> 20) % (VOCAB_SIZE - 3)


def reference_output(prompt: Sequence[int], num_tokens: int, seed: int, choice: int) -> list[int]:
    """The undisturbed output of one choice."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        tokens.append(next_token(tokens, seed, choice))
    return tokens[len(prompt) :]


def logprob(context: Sequence[int], token_id: int) -> float:
    """What the "model" thinks of a token after this context."""
    return -next_token([*context, token_id], 0, 0) / 64


def _sampled(context: list[int], row: SampleRow) -> Sampled:
    token_id = next_token(context, row.params.seed, row.choice)
    if row.params.allowed_token_ids:
        (token_id,) = row.params.allowed_token_ids
    if row.params.logprobs is None:
        return Sampled(token_id, None)
    return Sampled(token_id, TokenLogprobs(logprob(context, token_id)))


class FakeExecutor:
    """Implements `Executor` and `KVOps` on token ids instead of KV."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots = np.full((num_blocks, block_size), UNWRITTEN, dtype=np.int64)
        self.num_steps = 0
        self.batch_sizes: list[int] = []

    def execute(self, step: StepInput, rows: list[SampleRow]) -> list[Sampled]:
        self.num_steps += 1
        self.batch_sizes.append(len(step.context_lens))
        assert len(set(step.slot_mapping.tolist())) == len(step.slot_mapping), "slots collide"
        self.slots.reshape(-1)[step.slot_mapping] = step.token_ids
        row_of_token = np.searchsorted(step.query_starts, step.logits_rows, side="right") - 1
        positions = step.positions[step.logits_rows].tolist()
        contexts = [
            self._context(step, int(row), position)
            for row, position in zip(row_of_token, positions, strict=True)
        ]
        return [_sampled(contexts[row.logits_row], row) for row in rows]

    def copy_blocks(self, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            self.slots[target] = self.slots[source]

    def pack(self, blocks: Sequence[int]) -> torch.Tensor:
        return torch.from_numpy(self.slots[list(blocks)].copy())

    def unpack(self, blocks: Sequence[int], staging: torch.Tensor) -> None:
        self.slots[list(blocks)] = staging.numpy()

    def _context(self, step: StepInput, row: int, position: int) -> list[int]:
        length = position + 1
        num_blocks = -(-length // self.block_size)
        slots = self.slots[step.block_tables[row, :num_blocks]].reshape(-1)[:length]
        tokens = [int(token) for token in slots]
        assert UNWRITTEN not in tokens, "read KV that was never written"
        return tokens
