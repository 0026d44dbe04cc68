"""A step plan flattened into arrays: no padding of tokens, no Python object per token.

Everything a rank needs for a step is in `StepInput`, as plain numpy arrays, so that it can travel
to the other ranks of a group as it is; sampling needs sequences and stays with the leader.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.plan import PlannedChunk, StepPlan
from engine.prompt_scores import score_rows
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
    if plan.num_decode == len(plan.chunks) and not plan.num_scored:
        return _flatten_decode(plan, block_size)
    chunks = plan.chunks
    lengths = np.array([c.num_tokens for c in chunks], dtype=np.int32)
    starts = np.array([c.sequence.num_computed for c in chunks], dtype=np.int32)
    query_starts = np.zeros(len(chunks) + 1, dtype=np.int32)
    np.cumsum(lengths, out=query_starts[1:])
    row_of_token = np.repeat(np.arange(len(chunks)), lengths)
    offsets = np.arange(query_starts[-1]) - query_starts[row_of_token]
    positions = offsets.astype(np.int64) + starts[row_of_token]
    tables = _block_tables(chunks)
    blocks = tables[row_of_token, positions // block_size].astype(np.int64)
    return StepInput(
        token_ids=_token_ids(plan),
        positions=positions,
        query_starts=query_starts,
        context_lens=starts + lengths,
        block_tables=tables,
        slot_mapping=blocks * block_size + positions % block_size,
        logits_rows=_logits_rows(plan, query_starts),
        num_decode=plan.num_decode,
    )


def _logits_rows(plan: StepPlan, query_starts: Int32) -> Int64:
    """The last position of chunks that sample; all positions of those whose tokens are scored."""
    ends = query_starts[1:]
    if not plan.num_scored:
        sampled = [row for row, chunk in enumerate(plan.chunks) if chunk.sample_choices]
        return (ends[sampled] - 1).astype(np.int64)
    counts = [c.num_scored + bool(c.sample_choices) for c in plan.chunks]
    parts = [np.arange(end - n, end) for end, n in zip(ends.tolist(), counts, strict=True)]
    return np.concatenate(parts).astype(np.int64)


def _flatten_decode(plan: StepPlan, block_size: int) -> StepInput:
    """One token each: rows and tokens are the same.

    Between two steps the model has pushed everything out of the CPU's caches, so that the first
    use of any function costs microseconds: plain loops and one array are faster than many arrays.
    """
    token_ids: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    sampled: list[int] = []
    for row, (sequence, _, choices, _) in enumerate(plan.chunks):
        position = sequence.num_computed
        block = sequence.block_table[position // block_size]
        token_ids.append(sequence.token_ids[position])
        positions.append(position)
        slots.append(block * block_size + position % block_size)
        if choices:
            sampled.append(row)
    columns = np.array((token_ids, positions, slots), dtype=np.int64)  # [3, n]
    return StepInput(
        token_ids=columns[0],
        positions=columns[1],
        query_starts=np.arange(len(positions) + 1, dtype=np.int32),
        context_lens=np.array([position + 1 for position in positions], dtype=np.int32),
        block_tables=_block_tables(plan.chunks),
        slot_mapping=columns[2],
        logits_rows=np.array(sampled, dtype=np.int64),
        num_decode=plan.num_decode,
    )


def sample_rows(plan: StepPlan, eos_token_ids: tuple[int, ...]) -> list[SampleRow]:
    """One row per (chunk, choice) that samples, in the plan's order; before those of a chunk, the
    rows of its tokens that are scored."""
    rows: list[SampleRow] = []
    logits_row = 0
    for chunk in plan.chunks:
        sequence, _, choices, num_scored = chunk
        if num_scored:
            rows += score_rows(chunk, logits_row)
            logits_row += num_scored
        for choice in choices:
            params, position = sequence.sampling, sequence.num_output_tokens
            rows.append(
                SampleRow(
                    params,
                    choice,
                    position,
                    sequence.history(),
                    logits_row,
                    eos_token_ids,
                    sequence.grammar,
                )
            )
        logits_row += bool(choices)
    return rows


def _block_tables(chunks: tuple[PlannedChunk, ...]) -> Int32:
    views = [c.sequence.block_table.view() for c in chunks]
    tables = np.zeros((len(chunks), max(map(len, views))), dtype=np.int32)
    for row, view in enumerate(views):
        tables[row, : len(view)] = view
    return np.maximum(tables, 0, out=tables)


def _token_ids(plan: StepPlan) -> Int64:
    decode = [c.sequence.token_ids[c.sequence.num_computed] for c in plan.chunks[: plan.num_decode]]
    parts = [np.array(decode, dtype=np.int64)]
    for chunk in plan.chunks[plan.num_decode :]:
        start = chunk.sequence.num_computed
        ids = chunk.sequence.token_ids[start : start + chunk.num_tokens]
        parts.append(np.array(ids, dtype=np.int64))
    return np.concatenate(parts)
