"""When requests arrive in an open loop."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate


def arrival_times_s(rate_rps: float, burstiness: float, rng: random.Random) -> Iterator[float]:
    """Endless arrival times in seconds from 0, with gamma-distributed gaps of mean `1 / rate_rps`.

    `burstiness` is the gamma's shape: 1 is a Poisson process, below 1 arrivals clump, above 1 they
    even out.
    """
    assert rate_rps > 0 and burstiness > 0
    scale_s = 1 / (rate_rps * burstiness)
    return accumulate(_gaps_s(burstiness, scale_s, rng))


def _gaps_s(shape: float, scale_s: float, rng: random.Random) -> Iterator[float]:
    while True:
        yield rng.gammavariate(shape, scale_s)
