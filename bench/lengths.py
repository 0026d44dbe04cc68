"""Token lengths drawn for synthetic requests."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from core.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LengthRange:
    """Log-uniform lengths between two bounds, both included; equal bounds fix the length."""

    low: int
    high: int

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.high:
            raise ConfigError(f"length range {self.low}:{self.high}: expected 0 < low <= high")

    def draw(self, rng: random.Random) -> int:
        """One length; each doubling of the length is as likely as any other."""
        if self.low == self.high:
            return self.low
        drawn = math.exp(rng.uniform(math.log(self.low), math.log(self.high + 1)))
        return min(max(int(drawn), self.low), self.high)


def parse_lengths(text: str) -> LengthRange:
    """Reads `128` (always) or `8:256` (log-uniform); raises ConfigError."""
    low, colon, high = text.partition(":")
    try:
        return LengthRange(int(low), int(high) if colon else int(low))
    except ValueError:
        raise ConfigError(f"length {text!r}: expected a number, or low:high") from None
