"""How the reference attention walks through one batch, worked out once for all layers of a step.

Decode rows are gathered into buckets of about one length, each one batched attention. A bucket is
padded to its longest row, so it is closed when one more row would waste more on padding than
another bucket costs, or when its keys would no longer fit a core's cache:

    context   ################             bucket 1    ################
              ##############..                         ##############..
              ###                          bucket 2    ###
              ##.                                      ##.

Prefill chunks are few and long: one attention each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tandem_kernels.interface import AttentionMeta

# A bucket's fixed cost (some twenty torch calls in a layer) in padded tokens of equal cost:
# measured with 3 KV heads of 64 on one CPU core, 40 us against 0.16 us.
BUCKET_COST_TOKENS = 256
# A larger bucket's gathered keys leave the cache, and malloc maps fresh pages for them each time:
# 32 rows of 1,024 tokens take 40 ms of CPU in one bucket and 9 ms in eight (float32, as above).
BUCKET_MAX_TOKENS = 4096


@dataclass(frozen=True, eq=False, slots=True)
class DecodeBucket:
    """b decode rows whose keys are gathered from nb blocks each, S = nb * block_size."""

    rows: Tensor
    """int64 [b], rows of q."""
    planes: Tensor
    """int64 [b * kv_heads * nb], (block, head) planes of the cache, a plane being one block's
    tokens of one head."""
    bias: Tensor
    """float32 [b, 1, 1, S], 0 where a key is seen and -inf elsewhere."""


@dataclass(frozen=True, eq=False, slots=True)
class PrefillChunk:
    """t consecutive query rows of one sequence and the S keys they may see."""

    start: int
    end: int
    planes: Tensor
    """int64 [kv_heads * nb]."""
    first_slot: int
    last_slot: int
    """The S keys within the gathered nb * block_size."""
    bias: Tensor | None
    """float32 [t, S]; None: plain causal, t == S."""


@dataclass(frozen=True, eq=False, slots=True)
class AttentionPlan:
    buckets: tuple[DecodeBucket, ...]
    chunks: tuple[PrefillChunk, ...]


def plan_attention(
    meta: AttentionMeta, num_kv_heads: int, block_size: int, window: int | None
) -> AttentionPlan:
    """The plan for caches of `num_kv_heads` and `block_size`. Waits for the device once."""
    planner = _Planner(meta, num_kv_heads, block_size, window)
    lengths = planner.context_lens
    decode_lengths = [planner.num_seen(n) for n in lengths[: meta.num_decode]]
    return AttentionPlan(
        buckets=tuple(planner.bucket(rows) for rows in bucket_rows(decode_lengths)),
        chunks=tuple(planner.chunk(i) for i in range(meta.num_decode, len(lengths))),
    )


def bucket_rows(lengths: list[int]) -> list[list[int]]:
    """Groups row numbers so that no group wastes more than a group costs, nor grows too large."""
    buckets: list[list[int]] = []
    longest = wasted = 0
    for row in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        wasted += longest - lengths[row]
        full = bool(buckets) and (len(buckets[-1]) + 1) * longest > BUCKET_MAX_TOKENS
        if not buckets or full or wasted > BUCKET_COST_TOKENS:
            buckets.append([])
            longest, wasted = lengths[row], 0
        buckets[-1].append(row)
    return buckets


class _Planner:
    """Builds the index tensors of one batch."""

    def __init__(
        self, meta: AttentionMeta, num_kv_heads: int, block_size: int, window: int | None
    ) -> None:
        self.context_lens: list[int] = meta.context_lens.tolist()
        self._query_starts: list[int] = meta.query_starts.tolist()
        self._lens = meta.context_lens.to(torch.int64)  # [n]
        self._tables = meta.block_tables.to(torch.int64)  # [n, max_blocks]
        self._window = window
        self._num_kv_heads = num_kv_heads
        self._block_size = block_size
        self._device = meta.context_lens.device

    def num_seen(self, context_len: int) -> int:
        """Keys that the last token of a context sees."""
        return context_len if self._window is None else min(context_len, self._window)

    def bucket(self, rows: list[int]) -> DecodeBucket:
        """Reads every row from the block of its first seen key on."""
        index = torch.tensor(rows, device=self._device)  # [b]
        ends = self._lens[index].unsqueeze(1)  # [b, 1]
        starts = torch.zeros_like(ends) if self._window is None else ends - self._window
        first = starts.clamp(min=0) // self._block_size
        last = (ends - 1) // self._block_size
        num_blocks = max(self._blocks_seen(self.context_lens[r]) for r in rows)
        columns = first + self._arange(num_blocks)  # [b, nb]
        # Padding repeats the row's own last block: always a valid one
        blocks = self._tables[index].gather(1, torch.minimum(columns, last))
        keys = first * self._block_size + self._arange(num_blocks * self._block_size)  # [b, S]
        return DecodeBucket(
            rows=index,
            planes=self._planes(blocks),
            bias=_bias((keys < ends) & (keys >= starts))[:, None, None, :],
        )

    def chunk(self, i: int) -> PrefillChunk:
        start, end, context_len = (
            self._query_starts[i],
            self._query_starts[i + 1],
            self.context_lens[i],
        )
        oldest_query = context_len - (end - start)
        first_key = 0 if self._window is None else max(0, oldest_query + 1 - self._window)
        first = first_key // self._block_size
        num_blocks = -(-context_len // self._block_size) - first
        blocks = self._tables[i : i + 1, first : first + num_blocks]
        return PrefillChunk(
            start=start,
            end=end,
            planes=self._planes(blocks),
            first_slot=first_key - first * self._block_size,
            last_slot=context_len - first * self._block_size,
            bias=self._chunk_bias(oldest_query, first_key, context_len),
        )

    def _chunk_bias(self, oldest_query: int, first_key: int, end: int) -> Tensor | None:
        if oldest_query == first_key == 0 and (self._window is None or self._window >= end):
            return None
        queries = torch.arange(oldest_query, end, device=self._device).unsqueeze(1)  # [t, 1]
        keys = torch.arange(first_key, end, device=self._device)  # [S]
        seen = keys <= queries
        if self._window is not None:
            seen &= keys > queries - self._window
        return _bias(seen)

    def _blocks_seen(self, context_len: int) -> int:
        first = (context_len - self.num_seen(context_len)) // self._block_size
        return (context_len - 1) // self._block_size - first + 1

    def _planes(self, blocks: Tensor) -> Tensor:
        """[b, nb] blocks -> [b * kv_heads * nb], so that a gather lands as [b, kv_heads, S]."""
        heads = self._arange(self._num_kv_heads)[None, :, None]
        return (blocks[:, None, :] * self._num_kv_heads + heads).reshape(-1)

    def _arange(self, n: int) -> Tensor:
        return torch.arange(n, device=self._device)


def _bias(seen: Tensor) -> Tensor:
    return torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, float("-inf"))
