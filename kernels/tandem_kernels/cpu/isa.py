"""Instruction sets that the kernels are compiled for, and which of them a CPU has.

avx512     AVX-512 with BF16 and VNNI (Zen 4, Sapphire Rapids and later)
avx2       AVX2 and FMA (Haswell and later; also AVX-512 without BF16 or VNNI)
portable   whatever the compiler assumes by default: SSE2 on x86-64, NEON on ARM
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Isa:
    """One level: a library of its own, which runs on every CPU that has the features."""

    name: str
    flags: tuple[str, ...]
    """Of the compiler."""
    features: frozenset[str]
    """As Linux names them in /proc/cpuinfo."""
    multiplies_bfloat16: bool = False
    """With instructions of its own: faster than float32, whatever is read."""


_AVX2 = frozenset({"avx2", "fma", "f16c", "bmi1", "bmi2", "movbe"})
_AVX512 = frozenset({f"avx512{part}" for part in ("f", "bw", "cd", "dq", "vl", "_bf16", "_vnni")})

# The fastest first
LEVELS = (
    Isa(
        "avx512",
        ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni", "-mprefer-vector-width=512"),
        _AVX2 | _AVX512,
        multiplies_bfloat16=True,
    ),
    Isa("avx2", ("-march=x86-64-v3",), _AVX2),
    Isa("portable", (), frozenset()),
)


def choose_isa(features: Set[str], wanted: str | None = None) -> Isa:
    """The fastest level that a CPU with these features runs, or the one that is wanted.

    Raises ValueError for a level that doesn't exist, or that the CPU doesn't run.
    """
    if wanted is None:
        return next(level for level in LEVELS if level.features <= features)
    level = next((level for level in LEVELS if level.name == wanted), None)
    if level is None:
        names = ", ".join(level.name for level in LEVELS)
        raise ValueError(f"{wanted!r} is none of the instruction sets {names}")
    if not level.features <= features:
        missing = ", ".join(sorted(level.features - features))
        raise ValueError(f"this CPU doesn't run {wanted}: it lacks {missing}")
    return level


def cpu_features() -> frozenset[str]:
    """This CPU's; empty where the system doesn't tell them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    told = (line.partition(":")[2].split() for line in lines if line.startswith("flags"))
    return frozenset(next(told, ()))
