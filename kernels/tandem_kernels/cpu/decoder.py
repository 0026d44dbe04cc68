"""A decoder's step as one C++ call: the Python side of decoder.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from tandem_kernels.cpu.decoder_structs import (
    DecoderStruct,
    StepStruct,
    decoder_struct,
    step_batch,
)
from tandem_kernels.cpu.layer_cache import BatchStruct, CacheStruct, CacheStructs
from tandem_kernels.decoder import Decoder
from tandem_kernels.host_memory import lazy_zeros
from tandem_kernels.interface import AttentionMeta, LayerCache

TIMED_WORK = (
    "embedding",
    "norm",
    "qkv",
    "rope_write",
    "attention",
    "output",
    "gate_up",
    "activation",
    "down",
    "head",
    "waiting",
)
"""What `CpuProgram.timings` tells apart: `StepWork` of decoder.h. `norm` includes the sums before
norms, `rope_write` the writing of KV, `waiting` is for other threads at the ends of operations."""

_REFUSALS = {
    1: "a token id has no row in the embedding",
    2: "a position has no angles",
    3: "a wanted row is not a row of the batch",
}


class CpuProgram:
    """`StepProgram` for one decoder. One thread at a time may use it.

    The GIL is released from a step's start to its end. Scratch memory grows with the largest step
    and is kept.
    """

    def __init__(
        self, library: ctypes.CDLL, decoder: Decoder, dtype: torch.dtype, caches: CacheStructs
    ) -> None:
        self._library = _declared(library)
        self._decoder = decoder  # what the struct points to
        self._struct = decoder_struct(decoder, dtype)
        self._dtype = dtype
        self._cache_structs = caches
        self._caches: Sequence[LayerCache] | None = None
        self._cache_pointers = (ctypes.POINTER(CacheStruct) * 0)()
        self._scratch = lazy_zeros(0)
        self._timings: ctypes.Array[ctypes.c_int64] | None = None

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        meta: AttentionMeta,
        caches: Sequence[LayerCache],
        rows: Tensor | None = None,
    ) -> Tensor:
        """`StepProgram.forward`."""
        hidden = self._hidden(len(token_ids) if rows is None else len(rows))
        self._run(token_ids, positions, meta, caches, rows, hidden, None)
        return hidden

    def step(
        self,
        token_ids: Tensor,
        positions: Tensor,
        meta: AttentionMeta,
        caches: Sequence[LayerCache],
        rows: Tensor,
    ) -> Tensor:
        """`StepProgram.step`."""
        hidden, logits = self._hidden(len(rows)), self._logits(len(rows))
        self._run(token_ids, positions, meta, caches, rows, hidden, logits)
        return logits

    def logits(self, hidden: Tensor) -> Tensor:
        """`StepProgram.logits`."""
        assert hidden.dtype == self._dtype and hidden.is_contiguous()
        logits = self._logits(len(hidden))
        self._library.tandem_decoder_logits(
            self._struct, hidden.data_ptr(), len(hidden), logits.data_ptr(), self._timings
        )
        return logits

    def start_timings(self) -> None:
        """From now on measures what steps spend their time on, beginning at 0.

        Until `stop_timings`; a step that isn't measured pays nothing.
        """
        self._timings = (ctypes.c_int64 * len(TIMED_WORK))()

    def timings(self) -> dict[str, int]:
        """Nanoseconds of the calling thread by `TIMED_WORK` since `start_timings`.

        The sum is the wall-clock time of the steps, but for a few microseconds each. While threads
        take slabs of rows (many rows), the figures are of the slabs that this thread took.
        """
        assert self._timings is not None
        return dict(zip(TIMED_WORK, self._timings, strict=True))

    def stop_timings(self) -> None:
        self._timings = None

    def _run(
        self,
        token_ids: Tensor,
        positions: Tensor,
        meta: AttentionMeta,
        caches: Sequence[LayerCache],
        rows: Tensor | None,
        hidden: Tensor,
        logits: Tensor | None,
    ) -> None:
        batch = step_batch(meta, positions)
        num_threads = self._library.tandem_num_threads()
        step = StepStruct(
            batch=ctypes.pointer(batch),
            token_ids=_int64s(token_ids).data_ptr(),
            num_tokens=len(token_ids),
            caches=self._caches_of(caches),
            rows=None if rows is None else _int64s(rows).data_ptr(),
            num_rows=len(hidden),
            hidden=hidden.data_ptr(),
            logits=None if logits is None else logits.data_ptr(),
            num_threads=num_threads,
            scratch=self._room(len(token_ids), batch, num_threads),
            timings=None if self._timings is None else ctypes.addressof(self._timings),
        )
        refused = self._library.tandem_decoder_step(self._struct, step)
        if refused:
            raise IndexError(_REFUSALS[refused])

    def _hidden(self, rows: int) -> Tensor:
        return torch.empty((rows, self._struct.hidden_size), dtype=self._dtype)

    def _logits(self, rows: int) -> Tensor:
        return torch.empty((rows, self._struct.logits_size), dtype=torch.float32)

    def _caches_of(
        self, caches: Sequence[LayerCache]
    ) -> ctypes.Array[ctypes._Pointer[CacheStruct]]:
        """Pointers to the structs, made once for as long as the same caches are passed."""
        if self._caches is not caches:
            assert len(caches) == self._struct.num_layers
            pointers = [ctypes.pointer(self._cache_structs.of(cache)) for cache in caches]
            self._cache_pointers = (ctypes.POINTER(CacheStruct) * len(caches))(*pointers)
            self._caches = caches
        return self._cache_pointers

    def _room(self, num_tokens: int, batch: BatchStruct, num_threads: int) -> int:
        """The address of scratch memory that is large enough."""
        size_bytes = self._library.tandem_decoder_scratch_bytes(
            self._struct, num_tokens, batch.num_sequences, num_threads
        )
        if len(self._scratch) < size_bytes:
            self._scratch = lazy_zeros(size_bytes)
        return self._scratch.data_ptr()


def _int64s(numbers: Tensor) -> Tensor:
    assert numbers.dtype == torch.int64 and numbers.is_contiguous()
    return numbers


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, int32, int64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    decoder, step = ctypes.POINTER(DecoderStruct), ctypes.POINTER(StepStruct)
    library.tandem_decoder_scratch_bytes.argtypes = [decoder, int64, int64, int64]
    library.tandem_decoder_scratch_bytes.restype = int64
    library.tandem_decoder_step.argtypes = [decoder, step]
    library.tandem_decoder_step.restype = int32
    library.tandem_decoder_logits.argtypes = [decoder, pointer, int64, pointer, pointer]
    library.tandem_decoder_logits.restype = None
    return library
