"""One token from each of some rows of logits: the Python side of sampling.cpp.

A row of the call is two pieces of bytes: what changes from token to token (`pack_row`), then what a
request keeps (`PackedParams`), as `SamplingRow` of sampling.h has them.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from core.request import SamplingParams

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]

_ROW = struct.Struct("qQQqQII")
_BEFORE = struct.Struct("QQQqQq")
_FORBIDDEN = struct.Struct("Qq")
_AFTER = struct.Struct("QqdddfffIii")
_PARAMS_SIZE = _BEFORE.size + _FORBIDDEN.size + _AFTER.size


class PackedParams:
    """The part of a row that follows from a request. Owns the arrays that its bytes point to."""

    __slots__ = ("_after", "_before", "_memory", "bytes", "num_top")

    def __init__(
        self, params: SamplingParams, eos_token_ids: tuple[int, ...], *, min_temperature: float
    ) -> None:
        """Temperatures below `min_temperature` are greedy."""
        bias_ids = _ids([token_id for token_id, _ in params.logit_bias])
        biases = np.array([bias for _, bias in params.logit_bias], dtype=np.float32)
        stops = _ids([*eos_token_ids, *params.stop_token_ids])
        forbidden = _ids([word[0] for word in params.bad_words if len(word) == 1])
        allowed = _ids(params.allowed_token_ids)
        self._memory = (bias_ids, biases, stops, forbidden, allowed)
        self.num_top = params.logprobs or 0
        self._before = _BEFORE.pack(
            params.seed & 0xFFFFFFFFFFFFFFFF,
            bias_ids.ctypes.data,
            biases.ctypes.data,
            len(biases),
            stops.ctypes.data,
            len(stops),
        )
        self._after = _AFTER.pack(
            allowed.ctypes.data,
            len(allowed),
            params.top_p,
            params.presence_penalty,
            params.frequency_penalty,
            params.repetition_penalty,
            params.temperature if params.temperature >= min_temperature else 0.0,
            params.min_p,
            params.min_tokens,
            min(params.top_k, 0x7FFFFFFF),
            -1 if params.logprobs is None else self.num_top,
        )
        self.bytes = self.forbidding(forbidden)

    def forbidding(self, forbidden: Int32) -> bytes:
        """`bytes` for one token, with other forbidden ids; valid as long as the array is."""
        middle = _FORBIDDEN.pack(forbidden.ctypes.data, len(forbidden))
        return self._before + middle + self._after


def _ids(values: Sequence[int]) -> Int32:
    return np.array(values, dtype=np.int32)


def pack_row(
    logits_row: int, choice: int, position: int, seen: tuple[int, int, int], mask: int = 0
) -> bytes:
    """`seen` are the addresses of the distinct ids of prompt and output, int32, and of their counts
    in the output, int32, and how many they are: (0, 0, 0) without penalties. `mask` is the address
    of one bit for each token, set where it may be drawn; 0 if all may."""
    return _ROW.pack(logits_row, *seen, mask, choice & 0xFFFFFFFF, position)


@dataclass(frozen=True, eq=False, slots=True)
class Choices:
    """What was drawn for n rows. Arrays are valid until the next call."""

    token_ids: list[int]
    """-1 where the logits have no finite maximum."""
    logprobs: Float32  # [n or more]
    top_ids: Int32  # [n or more, max_top], best first
    top_logprobs: Float32  # [n or more, max_top]


class CpuSampling:
    """Draws tokens on this process's compute threads. A row's result depends on that row alone.

    One thread at a time may use it. Results go to memory that is kept: between two steps the model
    has pushed Python out of the CPU's caches, and every allocation and address costs microseconds.
    """

    def __init__(self, library: ctypes.CDLL) -> None:
        self._sample = library["tandem_sample"]
        pointer, number = ctypes.c_void_p, ctypes.c_int64
        self._sample.argtypes = (
            *(pointer, number, number, ctypes.c_char_p, number),
            *(pointer, pointer, pointer, pointer, number),
        )
        self._sample.restype = None
        self._results = _Results(64, 0)

    def __call__(self, logits: Tensor, rows: bytes, num_rows: int, max_top: int) -> Choices:
        """`logits` is float32 [R, vocab]; `rows` are `num_rows` packed ones, who want at most
        `max_top` alternatives each."""
        assert logits.dtype == torch.float32 and logits.stride(1) == 1
        assert len(rows) == num_rows * (_ROW.size + _PARAMS_SIZE)
        if num_rows > self._results.num_rows or max_top != self._results.max_top:
            self._results = _Results(max(num_rows, self._results.num_rows), max_top)
        results = self._results
        stride, vocab_size = logits.stride(0), logits.shape[1]
        self._sample(
            logits.data_ptr(), stride, vocab_size, rows, num_rows, *results.addresses, max_top
        )
        return Choices(
            results.token_ids[:num_rows].tolist(),
            results.logprobs,
            results.top_ids,
            results.top_logprobs,
        )


class _Results:
    """Room for what a call writes, and where it is."""

    __slots__ = (
        "addresses",
        "logprobs",
        "max_top",
        "num_rows",
        "token_ids",
        "top_ids",
        "top_logprobs",
    )

    def __init__(self, num_rows: int, max_top: int) -> None:
        self.num_rows, self.max_top = num_rows, max_top
        self.token_ids = np.zeros(num_rows, dtype=np.int64)
        self.logprobs = np.zeros(num_rows, dtype=np.float32)
        self.top_ids = np.zeros((num_rows, max_top), dtype=np.int32)
        self.top_logprobs = np.zeros((num_rows, max_top), dtype=np.float32)
        arrays = (self.token_ids, self.logprobs, self.top_ids, self.top_logprobs)
        self.addresses = tuple(array.ctypes.data for array in arrays)
