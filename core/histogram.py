"""Durations counted in buckets, as a process keeps them and as it reports them."""

from __future__ import annotations

import threading
from bisect import bisect_left
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many durations fell into which bucket.

    `counts[i]` lie above `bounds_s[i - 1]` and at most at `bounds_s[i]`; the last count has no
    upper bound. Without bounds and counts nothing is known, as of a peer that doesn't report it.
    """

    bounds_s: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()
    sum_s: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)


class Durations:
    """A histogram that grows. Thread-safe."""

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        assert list(bounds_s) == sorted(set(bounds_s)), "bounds ascend"
        self._lock = threading.Lock()
        self._bounds_s = bounds_s
        self._counts = [0] * (len(bounds_s) + 1)
        self._sum_s = 0.0

    def observe(self, duration_s: float) -> None:
        with self._lock:
            self._counts[bisect_left(self._bounds_s, duration_s)] += 1
            self._sum_s += duration_s

    def histogram(self) -> Histogram:
        """All observed so far."""
        with self._lock:
            return Histogram(self._bounds_s, tuple(self._counts), self._sum_s)
