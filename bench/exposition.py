"""Histograms of a Prometheus text page, compared before and after a run."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass

_SAMPLE = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)")
_BOUND = re.compile(r'(?:^|,)le="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Histogram:
    """One histogram, summed over its labels. `buckets` maps upper bounds to cumulative counts."""

    count: float
    sum: float
    buckets: tuple[tuple[float, float], ...]

    @property
    def mean(self) -> float:
        return self.sum / self.count

    def quantile(self, share: float) -> float:
        """The value below which `share` of the samples lie, linear within a bucket.

        Samples above the last finite bound are reported as that bound.
        """
        wanted = share * self.count
        low_bound = low_count = 0.0
        for bound, count in self.buckets:
            if count >= wanted and count > low_count:
                if math.isinf(bound):
                    return low_bound
                part = (wanted - low_count) / (count - low_count)
                return low_bound + part * (bound - low_bound)
            low_bound, low_count = bound, count
        return low_bound


def histogram(page: str, name: str) -> Histogram:
    """The histogram of that name on a metrics page; empty if it is not there."""
    buckets: defaultdict[float, float] = defaultdict(float)
    totals = {f"{name}_count": 0.0, f"{name}_sum": 0.0}
    for match in filter(None, map(_SAMPLE.match, page.splitlines())):
        sample, labels, value = match["name"], match["labels"] or "", float(match["value"])
        if sample in totals:
            totals[sample] += value
        elif sample == f"{name}_bucket" and (bound := _BOUND.search(labels)):
            buckets[float(bound[1])] += value
    return Histogram(totals[f"{name}_count"], totals[f"{name}_sum"], tuple(sorted(buckets.items())))


def gauge(page: str, name: str) -> dict[str, float]:
    """A metric's samples by their label text; empty if it is not on the page."""
    return {
        match["labels"] or "": float(match["value"])
        for match in filter(None, map(_SAMPLE.match, page.splitlines()))
        if match["name"] == name
    }


def since(before: Histogram, after: Histogram) -> Histogram:
    """What was observed between two readings of one histogram."""
    earlier = dict(before.buckets)
    return Histogram(
        after.count - before.count,
        after.sum - before.sum,
        tuple((bound, count - earlier.get(bound, 0.0)) for bound, count in after.buckets),
    )
