"""What this machine reads and multiplies at best, measured with torch on the engine's threads."""

from __future__ import annotations

from collections.abc import Callable

import torch

from bench.step import Roofline
from core.clock import Clock

_READ_BYTES = 512 * 1024 * 1024
"""Far beyond any cache."""
_SIZE = 2048
"""Of the square matrices: large enough for the best rate, and 17 G operations."""
_REPEATS = 8


def measure_roofline(device: torch.device, matmul_type: str, clock: Clock) -> Roofline:
    """`matmul_type` is bfloat16, float16, float32 or int8: what linear layers multiply."""
    memory = torch.ones(_READ_BYTES // 4, dtype=torch.float32, device=device)
    read_s = _fastest(lambda: memory.sum(), device, clock)
    multiply = _int8_product(device) if matmul_type == "int8" else _product(device, matmul_type)
    multiply_s = _fastest(multiply, device, clock)
    return Roofline(_READ_BYTES / read_s, 2 * _SIZE**3 / multiply_s, matmul_type)


def best_of(first: Roofline, second: Roofline) -> Roofline:
    """Of two measurements of one machine: what it was once able to do."""
    return Roofline(
        max(first.read_bytes_per_s, second.read_bytes_per_s),
        max(first.matmul_ops_per_s, second.matmul_ops_per_s),
        first.matmul_type,
    )


def wait_for(device: torch.device) -> None:
    """Returns when all that was started on `device` is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _product(device: torch.device, dtype: str) -> Callable[[], object]:
    left, right = torch.randn(2, _SIZE, _SIZE, device=device).to(getattr(torch, dtype))
    return lambda: left @ right


def _int8_product(device: torch.device) -> Callable[[], object]:
    left, right = torch.randint(-127, 128, (2, _SIZE, _SIZE), dtype=torch.int8, device=device)
    return lambda: torch._int_mm(left, right)


def _fastest(work: Callable[[], object], device: torch.device, clock: Clock) -> float:
    """Seconds of the fastest of some runs, after one to warm up."""
    times: list[float] = []
    for _ in range(1 + _REPEATS):
        wait_for(device)
        started_s = clock.now()
        work()
        wait_for(device)
        times.append(clock.now() - started_s)
    return min(times[1:])
