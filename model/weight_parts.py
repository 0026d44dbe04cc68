"""Which rows of which tensors one linear layer is stacked from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WeightPart:
    """Some rows of a module's weight (and of its bias, where it has one)."""

    module: str
    """The tensor's name without `.weight`."""
    rows: range


def stacked_parts(outputs: Iterable[tuple[str, int, range]]) -> tuple[WeightPart, ...]:
    """Outputs (module, size, the rows wanted of it) as parts of the tensors that hold them.

    Outputs of one module lie in its tensor one after the other:

        (qkv, 8, 0..4), (qkv, 4, 0..2), (qkv, 4, 0..2)   ->   qkv 0..4, 8..10, 12..14
    """
    ends: dict[str, int] = {}
    parts = []
    for module, size, rows in outputs:
        start = ends.get(module, 0)
        parts.append(WeightPart(module, range(start + rows.start, start + rows.stop)))
        ends[module] = start + size
    return tuple(parts)
