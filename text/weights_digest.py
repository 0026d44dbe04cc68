"""A cheap fingerprint of a model's weights: equal on every machine that has the same files.

Reading all weights at each start would cost seconds to minutes, so per file it covers the name,
the size, the header (every tensor's name, type, shape and place), and three samples of every
tensor. Training changes every tensor nearly everywhere, quantisation changes types and sizes; what
it cannot see is a change of a few bytes between samples.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

SAMPLE_BYTES = 1024


@dataclass(frozen=True, slots=True)
class WeightFile:
    """A file to cover: `name` stands in the digest, `tensors` are (name, offset, size) in bytes."""

    name: str
    path: Path
    header_bytes: int
    tensors: tuple[tuple[str, int, int], ...]


def weights_digest(
    files: Iterable[WeightFile], *, facts: Mapping[str, object] | None = None
) -> str:
    """Digest over the files in the order given; where they lie makes no difference.

    `facts` are settings outside the weight files that change what the weights compute.
    """
    digest = hashlib.sha256(json.dumps(facts or {}, sort_keys=True).encode())
    for weight_file in files:
        with weight_file.path.open("rb", buffering=0) as file:
            size = weight_file.path.stat().st_size
            digest.update(f"{weight_file.name}\0{size}\0".encode())
            digest.update(_read_at(file, 0, weight_file.header_bytes))
            for _, offset, size in sorted(weight_file.tensors):
                for start in _sample_starts(offset, size):
                    digest.update(_read_at(file, start, min(SAMPLE_BYTES, size)))
    return digest.hexdigest()[:32]


def _sample_starts(offset: int, size: int) -> list[int]:
    """First, middle and last bytes of a tensor, fewer where they would overlap entirely."""
    last = max(0, size - SAMPLE_BYTES)
    return [offset + start for start in sorted({0, last // 2, last})]


def _read_at(file: BinaryIO, offset: int, size: int) -> bytes:
    file.seek(offset)
    return file.read(size)
