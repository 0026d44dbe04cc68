"""What a leader tells the other ranks of its group to do, as bytes: a header, then plain arrays.

    step    kind, sizes | token_ids positions slot_mapping logits_rows | int64
                        | query_starts context_lens block_tables       | int32
    copy    kind, number | (source, target) blocks                     | int32
    unpack  kind, message, number | blocks | int32, link id | UTF-8
    stop    kind

All is little-endian, and the wide arrays come first, so that none lies across its own size.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from engine.batch import Int32, Int64, StepInput

_KIND = struct.Struct("<Q")
_STEP = struct.Struct("<QIIIII4x")  # a multiple of 8 bytes, as all headers
_COPY = struct.Struct("<QQ")
_UNPACK = struct.Struct("<QQQ")
_STEP_KIND, _COPY_KIND, _STOP_KIND, _UNPACK_KIND = 1, 2, 3, 4


@dataclass(frozen=True, slots=True)
class Step:
    """Compute this step and write its KV."""

    step: StepInput


@dataclass(frozen=True, slots=True)
class CopyBlocks:
    """Copy whole blocks, given as (source, target); no target is a source too."""

    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Unpack:
    """Put your share of message `seq` of this KV link, which has arrived, into these blocks."""

    link_id: str
    seq: int
    blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """Nothing more will come."""


PlanMessage: TypeAlias = Step | CopyBlocks | Unpack | Stop


def encode(message: PlanMessage) -> bytes:
    match message:
        case Step(step):
            return _encode_step(step)
        case CopyBlocks(pairs):
            return _COPY.pack(_COPY_KIND, len(pairs)) + np.array(pairs, dtype="<i4").tobytes()
        case Unpack(link_id, seq, blocks):
            header = _UNPACK.pack(_UNPACK_KIND, seq, len(blocks))
            return header + np.array(blocks, dtype="<i4").tobytes() + link_id.encode()
        case Stop():
            return _KIND.pack(_STOP_KIND)


def decode(data: bytearray) -> PlanMessage:
    """The message whose `encode` gave `data`. Its arrays lie in `data`, which is kept."""
    (kind,) = _KIND.unpack_from(data)
    if kind == _STEP_KIND:
        return Step(_decode_step(data))
    if kind == _COPY_KIND:
        _, count = _COPY.unpack_from(data)
        pairs = np.frombuffer(data, "<i4", 2 * count, _COPY.size).reshape(count, 2)
        return CopyBlocks(tuple((source, target) for source, target in pairs.tolist()))
    if kind == _UNPACK_KIND:
        _, seq, count = _UNPACK.unpack_from(data)
        blocks = np.frombuffer(data, "<i4", count, _UNPACK.size)
        link_id = bytes(data[_UNPACK.size + blocks.nbytes :]).decode()
        return Unpack(link_id, seq, tuple(blocks.tolist()))
    assert kind == _STOP_KIND, f"ranks of one group differ in their code: message kind {kind}"
    return Stop()


def _encode_step(step: StepInput) -> bytes:
    header = _STEP.pack(
        _STEP_KIND,
        len(step.token_ids),
        len(step.context_lens),
        step.block_tables.shape[1],
        len(step.logits_rows),
        step.num_decode,
    )
    wide = (step.token_ids, step.positions, step.slot_mapping, step.logits_rows)
    narrow = (step.query_starts, step.context_lens, step.block_tables)
    return b"".join(
        [
            header,
            *[np.ascontiguousarray(array, dtype="<i8").tobytes() for array in wide],
            *[np.ascontiguousarray(array, dtype="<i4").tobytes() for array in narrow],
        ]
    )


def _decode_step(data: bytearray) -> StepInput:
    _, num_tokens, num_rows, num_columns, num_logits, num_decode = _STEP.unpack_from(data)
    offset = _STEP.size
    wide: list[Int64] = _arrays(data, offset, "<i8", (num_tokens,) * 3 + (num_logits,))
    offset += 8 * (3 * num_tokens + num_logits)
    sizes = (num_rows + 1, num_rows, num_rows * num_columns)
    narrow: list[Int32] = _arrays(data, offset, "<i4", sizes)
    return StepInput(
        token_ids=wide[0],
        positions=wide[1],
        slot_mapping=wide[2],
        logits_rows=wide[3],
        query_starts=narrow[0],
        context_lens=narrow[1],
        block_tables=narrow[2].reshape(num_rows, num_columns),
        num_decode=num_decode,
    )


def _arrays(data: bytearray, offset: int, kind: str, sizes: Sequence[int]) -> list[np.ndarray]:
    """Consecutive arrays of one type."""
    dtype = np.dtype(kind)
    ends = np.cumsum(sizes).tolist()
    flat = np.frombuffer(data, dtype, ends[-1], offset)
    return np.split(flat, ends[:-1])
