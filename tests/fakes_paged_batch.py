"""Sequences in scattered cache blocks, and the batches that step them: what the engine would do."""

from __future__ import annotations

import random

import torch
from tandem_kernels import AttentionMeta
from torch import Tensor


class PagedSequences:
    """Block tables of any number of sequences; blocks are taken in random order, never block 0."""

    def __init__(self, *, num_blocks: int, block_size: int, seed: int = 0) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.lengths: dict[str, int] = {}
        self.tables: dict[str, list[int]] = {}
        self._free = list(range(1, num_blocks))
        random.Random(seed).shuffle(self._free)

    def step(self, queries: list[tuple[str, int]]) -> tuple[Tensor, AttentionMeta]:
        """Positions [T] and meta of a batch that adds so many tokens to each named sequence.

        Sequences with one token must come first.
        """
        starts = [self.lengths.get(name, 0) for name, _ in queries]
        for (name, num_tokens), start in zip(queries, starts, strict=True):
            self._grow(name, start + num_tokens)
        positions = [p for (_, n), s in zip(queries, starts, strict=True) for p in range(s, s + n)]
        slots = [
            self._slot(name, p)
            for (name, n), s in zip(queries, starts, strict=True)
            for p in range(s, s + n)
        ]
        counts = torch.tensor([n for _, n in queries])
        lengths = [self.lengths[name] for name, _ in queries]
        num_decode = next((i for i, (_, n) in enumerate(queries) if n > 1), len(queries))
        meta = AttentionMeta(
            query_starts=torch.nn.functional.pad(counts.cumsum(0), (1, 0)).to(torch.int32),
            context_lens=torch.tensor(lengths, dtype=torch.int32),
            block_tables=self._padded([name for name, _ in queries]),
            slot_mapping=torch.tensor(slots),
            num_decode=num_decode,
            max_context_len=max(lengths),
        )
        return torch.tensor(positions), meta

    def slots(self, name: str) -> list[int]:
        """Where every token of a sequence lies."""
        return [self._slot(name, p) for p in range(self.lengths[name])]

    def _grow(self, name: str, length: int) -> None:
        table = self.tables.setdefault(name, [])
        while len(table) * self.block_size < length:
            table.append(self._free.pop())
        self.lengths[name] = length

    def _slot(self, name: str, position: int) -> int:
        block, offset = divmod(position, self.block_size)
        return self.tables[name][block] * self.block_size + offset

    def _padded(self, names: list[str]) -> Tensor:
        """Block tables with 0 beyond the end."""
        tables = torch.zeros((len(names), max(len(self.tables[n]) for n in names)))
        for row, name in enumerate(names):
            tables[row, : len(self.tables[name])] = torch.tensor(self.tables[name])
        return tables.to(torch.int32)
