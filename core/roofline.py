"""What a machine can do at best: what is measured is shown as a share of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Roofline:
    """Rates with all threads of a rank. 0: not known."""

    read_bytes_per_s: float
    matmul_ops_per_s: float
    matmul_type: str
    """A dtype, or the weights' format: `int8`, `int4`, `w8a8`."""
