"""Copies KV blocks between a pool and contiguous staging: C++ on CPUs, torch elsewhere.

A pool is uint8 [num_blocks, runs, run_bytes]: a block's layers, keys and values apart; and within a
run, one piece for each head. Some heads of a block are the same part of every run.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from tandem_kernels.cpu.library import cpu_library

_P, _N = ctypes.c_void_p, ctypes.c_int64


class BlockCopies(Protocol):
    """`part` is a pool, or the same part of all its runs: uint8 [num_blocks, runs, part_bytes]."""

    def pack(self, part: Tensor, blocks: Sequence[int], out: Tensor) -> None:
        """Copies blocks into `out`, contiguous uint8 [n, runs, part_bytes] on the same device."""
        ...

    def unpack(self, part: Tensor, blocks: Sequence[int], staging: Tensor) -> None:
        """The inverse; blocks are all different."""
        ...

    def copy(self, pool: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        """Copies whole blocks, given as (source, target); no target is a source too."""
        ...


def block_copies(device: torch.device) -> BlockCopies:
    """The fastest there are for pools on `device`."""
    library = cpu_library() if device.type == "cpu" else None
    return TorchBlockCopies() if library is None else CpuBlockCopies(library)


class TorchBlockCopies:
    """`BlockCopies` in plain torch, on any device."""

    def pack(self, part: Tensor, blocks: Sequence[int], out: Tensor) -> None:
        torch.index_select(part, 0, _indices(blocks, part.device), out=out)

    def unpack(self, part: Tensor, blocks: Sequence[int], staging: Tensor) -> None:
        part.index_copy_(0, _indices(blocks, part.device), staging)

    def copy(self, pool: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        sources, targets = zip(*pairs, strict=True)
        copied = pool.index_select(0, _indices(sources, pool.device))
        pool.index_copy_(0, _indices(targets, pool.device), copied)


class CpuBlockCopies:
    """`BlockCopies` of kv_blocks.cpp. Packing uses the caller's thread alone."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._pack = library.tandem_pack_blocks
        self._unpack = library.tandem_unpack_blocks
        for function in (self._pack, self._unpack):
            function.argtypes = (_P, _N, _P, _N, _N, _N, _N, _P)
            function.restype = None
        self._copy = library.tandem_copy_blocks
        self._copy.argtypes = (_P, _N, _P, _N)
        self._copy.restype = None

    def pack(self, part: Tensor, blocks: Sequence[int], out: Tensor) -> None:
        self._pack(*_part_arguments(part, blocks), _staged(part, blocks, out))

    def unpack(self, part: Tensor, blocks: Sequence[int], staging: Tensor) -> None:
        self._unpack(*_part_arguments(part, blocks), _staged(part, blocks, staging))

    def copy(self, pool: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        flat = [block for pair in pairs for block in pair]
        assert pool.is_contiguous() and all(0 <= block < len(pool) for block in flat)
        self._copy(pool.data_ptr(), pool.stride(0), (_N * len(flat))(*flat), len(pairs))


def _part_arguments(part: Tensor, blocks: Sequence[int]) -> tuple[object, ...]:
    """A part that is whole blocks is one run: longer copies, fewer of them."""
    num_blocks, num_runs, part_bytes = part.shape
    assert part.dtype == torch.uint8 and part.stride(2) == 1
    assert all(0 <= block < num_blocks for block in blocks)
    block_stride, run_stride = part.stride(0), part.stride(1)
    if run_stride == part_bytes:
        num_runs, part_bytes = 1, num_runs * part_bytes
    numbers = (_N * len(blocks))(*blocks)
    return part.data_ptr(), block_stride, numbers, len(blocks), num_runs, run_stride, part_bytes


def _staged(part: Tensor, blocks: Sequence[int], staging: Tensor) -> int:
    assert staging.dtype == torch.uint8 and staging.is_contiguous()
    assert staging.shape == (len(blocks), *part.shape[1:])
    return staging.data_ptr()


def _indices(blocks: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(blocks, dtype=torch.int64, device=device)
