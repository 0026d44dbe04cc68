"""A step plan flattened into arrays: no padding of tokens, no Python object per token.

Everything a rank needs for a step is in `StepInput`, as plain numpy arrays, so that it can travel
to the other ranks of a group as it is; sampling needs sequences and stays with the leader.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.plan import PlannedChunk, StepPlan
from engine.sample_row import SampleRow

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class StepInput:
    """T tokens of n sequences, of which the first `num_decode` have one token each."""

    token_ids: Int64  # [T]
    positions: Int64  # [T]
    query_starts: Int32  # [n + 1], offsets into T
    context_lens: Int32  # [n], tokens with KV after this step
    block_tables: Int32  # [n, max_blocks], 0 where unused or outside the window
    slot_mapping: Int64  # [T], block x block_size + offset
    logits_rows: Int64  # [R], indices into T
    num_decode: int


def flatten(plan: StepPlan, block_size: int) -> StepInput:
    """Arrays for `plan`. Every chunk's blocks must have been allocated."""
    chunks = plan.chunks
    starts = np.array([c.sequence.num_computed for c in chunks], dtype=np.int32)
    tables = _block_tables(chunks)
    if plan.num_decode == len(chunks):  # one token each: rows and tokens are the same
        query_starts = np.arange(len(chunks) + 1, dtype=np.int32)
        row_of_token = query_starts[:-1]
        context_lens, positions = starts + np.int32(1), starts.astype(np.int64)
    else:
        lengths = np.array([c.num_tokens for c in chunks], dtype=np.int32)
        query_starts = np.zeros(len(chunks) + 1, dtype=np.int32)
        np.cumsum(lengths, out=query_starts[1:])
        row_of_token = np.repeat(np.arange(len(chunks), dtype=np.int32), lengths)
        offsets = np.arange(query_starts[-1]) - query_starts[row_of_token]
        context_lens, positions = starts + lengths, offsets + starts[row_of_token]
    blocks = tables[row_of_token, positions // block_size].astype(np.int64)
    sampled = [row for row, chunk in enumerate(chunks) if chunk.sample_choices]
    return StepInput(
        token_ids=_token_ids(plan),
        positions=positions,
        query_starts=query_starts,
        context_lens=context_lens,
        block_tables=tables,
        slot_mapping=blocks * block_size + positions % block_size,
        logits_rows=query_starts[1:][sampled].astype(np.int64) - 1,
        num_decode=plan.num_decode,
    )


def sample_rows(plan: StepPlan, eos_token_ids: tuple[int, ...]) -> list[SampleRow]:
    """One row per (chunk, choice) that samples, in the plan's order."""
    rows: list[SampleRow] = []
    logits_row = 0
    for sequence, _, choices in plan.chunks:
        for choice in choices:
            params, position = sequence.sampling, sequence.num_output_tokens
            history = sequence.history()
            rows.append(SampleRow(params, choice, position, history, logits_row, eos_token_ids))
        logits_row += bool(choices)
    return rows


def _block_tables(chunks: tuple[PlannedChunk, ...]) -> Int32:
    views = [c.sequence.block_table.view() for c in chunks]
    tables = np.zeros((len(chunks), max(len(v) for v in views)), dtype=np.int32)
    for row, view in enumerate(views):
        tables[row, : len(view)] = view
    return np.maximum(tables, 0, out=tables)


def _token_ids(plan: StepPlan) -> Int64:
    decode = [c.sequence.token_ids[c.sequence.num_computed] for c in plan.chunks[: plan.num_decode]]
    if plan.num_decode == len(plan.chunks):
        return np.array(decode, dtype=np.int64)
    parts = [np.array(decode, dtype=np.int64)]
    for chunk in plan.chunks[plan.num_decode :]:
        start = chunk.sequence.num_computed
        ids = chunk.sequence.token_ids[start : start + chunk.num_tokens]
        parts.append(np.array(ids, dtype=np.int64))
    return np.concatenate(parts)
