"""What became of the requests of the last minutes, in steps of some seconds (pure).

Fed once a request, when it has ended. Its size depends on the time it spans, never on the load.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from router.observe.log_histogram import LogHistogram, percentiles

STEP_S = 5.0
NUM_STEPS = 60
"""Five minutes."""
SMOOTHED_STEPS = 2
"""A point's percentiles are of so many steps: one alone holds few requests."""
SUMMARY_STEPS = 12
"""The last minute."""
SHARES = (0.5, 0.95, 0.99)

Percentiles: TypeAlias = tuple[float, ...] | None
"""Of SHARES, in seconds."""


@dataclass(frozen=True, slots=True)
class ServiceLevel:
    """What makes a request one of the goodput: both kept, where it has them; seconds."""

    ttft_s: float
    tpot_s: float


@dataclass(frozen=True, slots=True)
class EndedRequest:
    """One request. `tpot_s` is None for answers of a single token."""

    ttft_s: float | None
    tpot_s: float | None
    finished: bool
    cancelled: bool
    num_output_tokens: int
    num_retries: int


@dataclass(frozen=True, slots=True)
class WindowPoint:
    """Some seconds of requests that ended then; rates are a second's."""

    span_s: float
    num_requests: int
    num_good: int
    num_failed: int
    num_cancelled: int
    num_retries: int
    num_output_tokens: int
    ttft_s: Percentiles
    tpot_s: Percentiles


@dataclass(slots=True)
class _Step:
    num_requests: int = 0
    num_good: int = 0
    num_failed: int = 0
    num_cancelled: int = 0
    num_retries: int = 0
    num_output_tokens: int = 0
    ttft: LogHistogram = field(default_factory=LogHistogram)
    tpot: LogHistogram = field(default_factory=LogHistogram)


class RequestWindow:
    """Moments come from one monotonic clock, in order."""

    def __init__(self, level: ServiceLevel, began: float) -> None:
        self.level = level
        self._began = began
        self._steps: dict[int, _Step] = {}
        self._points: dict[int, WindowPoint] = {}
        """Of steps that are over, made when they are first asked for."""

    def ended(self, request: EndedRequest, now: float) -> None:
        step = self._step(now)
        step.num_requests += 1
        step.num_retries += request.num_retries
        step.num_output_tokens += request.num_output_tokens
        step.num_cancelled += request.cancelled
        step.num_failed += not (request.finished or request.cancelled)
        if request.ttft_s is not None:
            step.ttft.add(request.ttft_s)
        if request.tpot_s is not None:
            step.tpot.add(request.tpot_s)
        step.num_good += request.finished and self._is_good(request)

    def refused(self, now: float) -> None:
        """One that was not let in."""
        step = self._step(now)
        step.num_requests += 1
        step.num_failed += 1

    def points(self, now: float) -> list[WindowPoint]:
        """One a step, the oldest first; the last one's step is not over yet."""
        current = int(now / STEP_S)
        first = current - NUM_STEPS + 1
        self._points = {index: p for index, p in self._points.items() if index >= first}
        return [self._point(index, now) for index in range(first, current + 1)]

    def summary(self, now: float) -> WindowPoint:
        """The last minute, or as much of it as there was."""
        current = int(now / STEP_S)
        covered = range(current - SUMMARY_STEPS + 1, current + 1)
        span_s = min(now - covered[0] * STEP_S, now - self._began)
        return self._joined(covered, covered, span_s)

    def _is_good(self, request: EndedRequest) -> bool:
        ttft_s, tpot_s, level = request.ttft_s, request.tpot_s, self.level
        if ttft_s is None or ttft_s > level.ttft_s:
            return False
        return tpot_s is None or tpot_s <= level.tpot_s

    def _point(self, index: int, now: float) -> WindowPoint:
        point = self._points.get(index)
        if point is None:
            over = (index + 1) * STEP_S <= now
            span_s = STEP_S if over else now - index * STEP_S
            smoothed = range(index - SMOOTHED_STEPS + 1, index + 1)
            point = self._joined(range(index, index + 1), smoothed, span_s)
            if over:
                self._points[index] = point
        return point

    def _joined(self, counted: range, smoothed: range, span_s: float) -> WindowPoint:
        """Counts of some steps, and percentiles of others."""
        steps, timed = self._there(counted), self._there(smoothed)
        return WindowPoint(
            span_s=max(span_s, 1e-3),
            num_requests=sum(s.num_requests for s in steps),
            num_good=sum(s.num_good for s in steps),
            num_failed=sum(s.num_failed for s in steps),
            num_cancelled=sum(s.num_cancelled for s in steps),
            num_retries=sum(s.num_retries for s in steps),
            num_output_tokens=sum(s.num_output_tokens for s in steps),
            ttft_s=percentiles((s.ttft for s in timed), SHARES),
            tpot_s=percentiles((s.tpot for s in timed), SHARES),
        )

    def _there(self, indices: Iterable[int]) -> list[_Step]:
        return [self._steps[index] for index in indices if index in self._steps]

    def _step(self, now: float) -> _Step:
        index = int(now / STEP_S)
        step = self._steps.get(index)
        if step is None:
            oldest = index - NUM_STEPS - SMOOTHED_STEPS
            self._steps = {i: s for i, s in self._steps.items() if i > oldest}
            step = self._steps[index] = _Step()
        return step
