"""How long until a prompt's first token, from what recent ones took (pure).

    seconds = base + slope x work        work = prompt tokens in front of it and its own, divided
                                         among the workers that compute prompts

A least-squares line through the recent requests, older ones fading. Where they were all alike the
slope is not known, and the least that fits is assumed: who knows nothing turns nobody away.
"""

from __future__ import annotations

from dataclasses import dataclass

FADE = 0.97
"""Weight of all former observations at each new one: the last thirty or so count."""
NUM_COLD = 5
"""The first ones after a start are slow, and not looked at."""
MIN_OBSERVATIONS = 10
"""Fewer, the cold ones included, say nothing."""


@dataclass(slots=True)
class TtftModel:
    """Fading sums of (work x, seconds t)."""

    num_observations: int = 0
    _n: float = 0.0
    _x: float = 0.0
    _t: float = 0.0
    _xx: float = 0.0
    _xt: float = 0.0

    def observe(self, work: float, seconds: float) -> None:
        """One request's first token came that long after it was sent to its worker."""
        self.num_observations += 1
        if self.num_observations <= NUM_COLD:
            return
        self._n = self._n * FADE + 1
        self._x = self._x * FADE + work
        self._t = self._t * FADE + seconds
        self._xx = self._xx * FADE + work * work
        self._xt = self._xt * FADE + work * seconds

    def predict(self, work: float) -> float | None:
        """Seconds; None: not known."""
        line = self._line()
        return None if line is None else line[0] + line[1] * work

    @property
    def tokens_per_second(self) -> float | None:
        """Prompt tokens that one worker computes; None: not known."""
        line = self._line()
        return None if line is None or line[1] <= 0 else 1 / line[1]

    def _line(self) -> tuple[float, float] | None:
        """Base and slope, neither below zero."""
        if self.num_observations < MIN_OBSERVATIONS:
            return None
        mean_x, mean_t = self._x / self._n, self._t / self._n
        variance = self._xx / self._n - mean_x * mean_x
        if variance <= 1e-3 * mean_x * mean_x:
            return mean_t, 0.0
        slope = max(0.0, (self._xt / self._n - mean_x * mean_t) / variance)
        base = mean_t - slope * mean_x
        if base < 0:
            return 0.0, self._xt / self._xx
        return base, slope
