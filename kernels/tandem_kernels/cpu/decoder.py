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
    describe_batch,
)
from tandem_kernels.cpu.layer_cache import CacheStruct, CacheStructs
from tandem_kernels.cpu.linear import CpuLinear
from tandem_kernels.cpu.linear_screen import LinearScreen, screen_of
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
_SCRATCH_TOO_SMALL = 4


class CpuProgram:
    """`StepProgram` for one decoder. One thread at a time may use it.

    The GIL is released from a step's start to its end. Scratch memory grows with the largest step
    and is kept. Between two steps, weights have pushed Python out of the CPU's caches, so what is
    executed here before the call costs several times what it does in a loop of its own.
    """

    def __init__(
        self, library: ctypes.CDLL, decoder: Decoder, dtype: torch.dtype, caches: CacheStructs
    ) -> None:
        self._library = _declared(library)
        self._decoder = decoder  # what the struct points to
        self._screen = _head_screen(library, decoder)
        screen = None if self._screen is None else self._screen.address
        self._struct = decoder_struct(decoder, dtype, screen)
        self._dtype = dtype
        self._cache_structs = caches
        self._caches: Sequence[LayerCache] | None = None
        self._scratch = lazy_zeros(0)
        self._step = StepStruct()  # kept: what doesn't change from step to step stays in it
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
        only_largest: Tensor | None = None,
    ) -> Tensor:
        """`StepProgram.step`."""
        hidden, logits = self._hidden(len(rows)), self._logits(len(rows))
        if only_largest is None:
            self._step.only_largest = None
        else:
            assert only_largest.dtype == torch.uint8 and len(only_largest) == len(rows)
            self._step.only_largest = only_largest.data_ptr()
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
        self._step.timings = ctypes.addressof(self._timings)

    def timings(self) -> dict[str, int]:
        """Nanoseconds of the calling thread by `TIMED_WORK` since `start_timings`.

        The sum is the wall-clock time of the steps, but for a few microseconds each. While threads
        take slabs of rows (many rows), the figures are of the slabs that this thread took.
        """
        assert self._timings is not None
        return dict(zip(TIMED_WORK, self._timings, strict=True))

    def stop_timings(self) -> None:
        self._timings = self._step.timings = None

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
        step = self._step
        describe_batch(step, token_ids, positions, meta)
        if rows is None:
            step.rows = None
        else:
            assert rows.dtype == torch.int64 and rows.is_contiguous()
            step.rows = rows.data_ptr()
        step.num_rows, step.hidden = len(hidden), hidden.data_ptr()
        step.logits = None if logits is None else logits.data_ptr()
        if self._caches is not caches:
            self._point_to(caches)
        refused = self._library.tandem_decoder_step(self._struct, step)
        if refused == _SCRATCH_TOO_SMALL:
            self._grow_scratch()
            refused = self._library.tandem_decoder_step(self._struct, step)
        if refused:
            raise IndexError(_REFUSALS[refused])

    def _hidden(self, rows: int) -> Tensor:
        return torch.empty((rows, self._struct.hidden_size), dtype=self._dtype)

    def _logits(self, rows: int) -> Tensor:
        return torch.empty((rows, self._struct.logits_size), dtype=torch.float32)

    def _point_to(self, caches: Sequence[LayerCache]) -> None:
        assert len(caches) == self._struct.num_layers
        pointers = [ctypes.pointer(self._cache_structs.of(cache)) for cache in caches]
        self._step.caches = (ctypes.POINTER(CacheStruct) * len(caches))(*pointers)
        self._caches = caches

    def _grow_scratch(self) -> None:
        """Makes room for the step that was refused."""
        self._scratch = lazy_zeros(0)  # the old memory goes before the new comes
        size_bytes = self._library.tandem_decoder_scratch_bytes(self._struct, self._step)
        self._scratch = lazy_zeros(size_bytes)
        self._step.scratch, self._step.scratch_bytes = self._scratch.data_ptr(), size_bytes


def _head_screen(library: ctypes.CDLL, decoder: Decoder) -> LinearScreen | None:
    """A cap that rounds two logits to one would make a tie of them: such heads are not screened."""
    if decoder.shape.logits_softcap != 0.0 or not isinstance(decoder.head, CpuLinear):
        return None
    return screen_of(library, decoder.head)


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    pointer, int64 = ctypes.c_void_p, ctypes.c_int64
    decoder, step = ctypes.POINTER(DecoderStruct), ctypes.POINTER(StepStruct)
    library.tandem_decoder_scratch_bytes.argtypes = [decoder, step]
    library.tandem_decoder_scratch_bytes.restype = int64
    library.tandem_decoder_step.argtypes = [decoder, step]
    library.tandem_decoder_step.restype = ctypes.c_int32
    library.tandem_decoder_logits.argtypes = [decoder, pointer, int64, pointer, pointer]
    library.tandem_decoder_logits.restype = None
    return library
