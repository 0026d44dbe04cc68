"""Linear layers by themselves, in one weight format after the other, beside this CPU's limits."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from tandem_kernels import QuantizedWeight
from tandem_kernels.cpu.build import Builder
from tandem_kernels.cpu.library import load_library
from tandem_kernels.cpu.linear import CpuLinear, LinearPacker
from tandem_kernels.cpu.linear_peaks import LinearPeaks
from torch import Tensor

from core.errors import ConfigError

FORMATS = ("float32", "bfloat16", "int8", "int4", "w8a8")
# Packed layers that are used in turn, so that weights come from memory as they do in a model
_WEIGHT_BYTES = 160 * 2**20
_REPEATS = 10
_RUN_OPERATIONS = 4e8
"""Of one timed run, in which weights are also read, about."""
_RUN_BYTES = 2e7


@dataclass(frozen=True, slots=True)
class LinearPoint:
    """One layer on one number of rows."""

    format: str
    out_features: int
    in_features: int
    rows: int
    seconds: float
    read_bytes_per_s: float
    """Packed weights over the time."""
    operations_per_s: float
    share_of_read: float
    share_of_operations: float


@dataclass(frozen=True, slots=True)
class LinearsReport:
    """Limits and points were measured in one process, with the same threads."""

    isa: str
    threads: int
    read_bytes_per_s: float
    peak_operations_per_s: dict[str, float]
    points: tuple[LinearPoint, ...]


def measure_linears(
    formats: Sequence[str],
    shapes: Sequence[tuple[int, int]],
    rows: Sequence[int],
    *,
    group_size: int,
    threads: int,
    isa: str | None,
    progress: Callable[[str], None],
) -> LinearsReport:
    """`shapes` are (out, in). Raises ConfigError where the kernels cannot be had."""
    builder = Builder.of_this_machine(isa)
    library = load_library(builder)
    if library is None:
        raise ConfigError("the CPU kernels cannot be compiled")
    torch.set_num_threads(threads)
    library.tandem_set_num_threads(threads)
    timer = _Timer(threads)
    peaks = LinearPeaks(library, timer.fastest_s)
    operations = {name: peaks.operations_per_s(name) for name in formats}
    read = peaks.read_bytes_per_s()
    points: list[LinearPoint] = []
    for name in formats:
        for shape in shapes:
            progress(f"{name} {shape[0]}x{shape[1]}")
            layers = _Layers(library, name, shape, group_size)
            points.extend(layers.points(rows, timer, read, operations[name]))
    return LinearsReport(builder.isa.name, threads, read, operations, tuple(points))


class _Timer:
    """Of one thread its CPU time, which other processes don't lengthen; of several, the clock's."""

    def __init__(self, threads: int) -> None:
        self._now = time.thread_time if threads == 1 else time.perf_counter

    def fastest_s(self, work: Callable[[], object]) -> float:
        times: list[float] = []
        for _ in range(1 + _REPEATS):
            started_s = self._now()
            work()
            times.append(self._now() - started_s)
        return min(times[1:])


class _Layers:
    """Equal layers, more than caches hold, which are used in turn."""

    def __init__(
        self, library: ctypes.CDLL, name: str, shape: tuple[int, int], group_size: int
    ) -> None:
        self._name, self._shape = name, shape
        self._dtype = torch.float32 if name == "float32" else torch.bfloat16
        packer = LinearPacker(library, self._dtype)
        weight = _random_weight(name, shape, group_size)
        first = packer.pack(weight, None)
        copies = max(1, _WEIGHT_BYTES // first.packed_bytes)
        self._layers = [first, *(packer.pack(weight, None) for _ in range(copies - 1))]

    def points(
        self, rows: Sequence[int], timer: _Timer, read: float, operations: float
    ) -> Iterator[LinearPoint]:
        out_features, in_features = self._shape
        size_bytes = self._layers[0].packed_bytes
        # Packing leaves the last layers in caches: all are read once before any is timed
        _run(self._turns(), torch.zeros(1, in_features, dtype=self._dtype), len(self._layers))
        for num_rows in rows:
            per_call = 2 * num_rows * out_features * in_features
            calls = max(1, round(min(_RUN_OPERATIONS / per_call, _RUN_BYTES / size_bytes)))
            x = torch.randn(num_rows, in_features).to(self._dtype)
            seconds = timer.fastest_s(partial(_run, self._turns(), x, calls)) / calls
            yield LinearPoint(
                self._name,
                out_features,
                in_features,
                num_rows,
                seconds,
                size_bytes / seconds,
                per_call / seconds,
                size_bytes / seconds / read,
                per_call / seconds / operations,
            )

    def _turns(self) -> Iterator[CpuLinear]:
        while True:
            yield from self._layers


def _run(turns: Iterator[CpuLinear], x: Tensor, calls: int) -> None:
    for _ in range(calls):
        next(turns)(x)


def _random_weight(name: str, shape: tuple[int, int], group_size: int) -> Tensor | QuantizedWeight:
    """int4 has offsets, and its scales fit float16 as those of GGUF files do."""
    num_rows, num_columns = shape
    if name in ("float32", "bfloat16"):
        return torch.randn(shape).to(getattr(torch, name))
    if name == "int4":
        scales = torch.rand(num_rows, -(-num_columns // group_size)).half().float()
        values = torch.randint(0, 16, shape, dtype=torch.uint8)
        return QuantizedWeight("int4", values, scales, -8 * scales, group_size)
    values = torch.randint(-127, 128, shape, dtype=torch.int8)
    scales = torch.rand(num_rows, 1).half().float()
    return QuantizedWeight("int8" if name == "int8" else "w8a8", values, scales, None, num_columns)
