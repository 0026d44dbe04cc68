"""Sizes in bytes as people write them."""

from __future__ import annotations

import re

from core.errors import ConfigError

_FACTORS = {
    "": 1,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
}


def parse_size(text: str) -> int:
    """Bytes of `8GiB`, `24 GB`, `512Mi` or `1000`. Raises ConfigError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?)?B?\s*", text)
    if match is None:
        raise ConfigError(f"{text!r} is not a size; write 8GiB, 24GB or a number of bytes")
    return int(float(match[1]) * _FACTORS[match[2] or ""])


def size_text(size_bytes: int) -> str:
    """The size in the largest binary unit that leaves at least one of it."""
    for unit in ("Ti", "Gi", "Mi", "Ki"):
        if size_bytes >= _FACTORS[unit]:
            return f"{size_bytes / _FACTORS[unit]:.2f} {unit}B"
    return f"{size_bytes} B"
