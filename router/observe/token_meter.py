"""Tokens as they leave for clients: the only thing that is counted once a token.

Plain numbers, since the event loop both counts and shows them; a tenth of what a counter and a
histogram with locks of their own cost.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from core import metric_names as names

BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_BOUND_TEXTS = (*map(floatToGoString, BOUNDS_S), "+Inf")


class TokenMeter:
    """Of one priority class. Not thread-safe."""

    __slots__ = ("num_tokens", "counts", "sum_s")

    def __init__(self) -> None:
        self.num_tokens = 0
        self.counts = [0] * (len(BOUNDS_S) + 1)
        self.sum_s = 0.0

    def tokens(self, count: int, since_last_s: float | None) -> None:
        """Tokens of one choice left together; `since_last_s` is None for its first ones."""
        self.num_tokens += count
        if since_last_s is not None and count:
            self.counts[bisect_left(BOUNDS_S, since_last_s / count)] += count
            self.sum_s += since_last_s


class TokenCollector(Collector):
    """Shows the meters of all classes. They are asked for at every scrape, by label values."""

    def __init__(
        self, labels: tuple[str, ...], meters: Callable[[], Mapping[tuple[str, ...], TokenMeter]]
    ) -> None:
        self._labels = labels
        self._meters = meters

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        tokens = CounterMetricFamily(
            names.OUTPUT_TOKENS_TOTAL, "Tokens sent to clients", labels=self._labels
        )
        gaps = HistogramMetricFamily(
            names.INTER_TOKEN_SECONDS, "Time between tokens of one choice", labels=self._labels
        )
        for labels, meter in self._meters().items():
            tokens.add_metric(labels, meter.num_tokens)
            below = list(zip(_BOUND_TEXTS, accumulate(meter.counts), strict=True))
            gaps.add_metric(labels, below, meter.sum_s)
        yield tokens
        yield gaps
