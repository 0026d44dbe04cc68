"""Percentiles, limits, and the share of requests that kept them: plain functions of numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from core.errors import ConfigError

_UNITS_S = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s)")


@dataclass(frozen=True, slots=True)
class Distribution:
    """What is reported of a set of samples, in the samples' own unit."""

    count: int
    mean: float
    p50: float
    p95: float
    p99: float
    max: float


def distribution(values: Iterable[float]) -> Distribution | None:
    """Summary of the samples; None if there are none."""
    ordered = sorted(values)
    if not ordered:
        return None
    return Distribution(
        count=len(ordered),
        mean=sum(ordered) / len(ordered),
        p50=percentile(ordered, 50),
        p95=percentile(ordered, 95),
        p99=percentile(ordered, 99),
        max=ordered[-1],
    )


def percentile(ordered: Sequence[float], percent: float) -> float:
    """The value below which `percent` % of the ascending samples lie.

    Interpolates linearly between neighbours (method 7 of Hyndman & Fan, numpy's default).
    """
    assert ordered, "no percentile of nothing"
    rank = (len(ordered) - 1) * percent / 100
    below = int(rank)
    above = min(below + 1, len(ordered) - 1)
    step = ordered[above] - ordered[below]
    # Equal neighbours must not be blurred by rounding: a constant sample has itself as percentile.
    return ordered[below] + step * (rank - below) if step else ordered[below]


def median(values: Iterable[float]) -> float:
    """The middle value, or the mean of the two middle ones."""
    return percentile(sorted(values), 50)


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits one request must keep to count as good; None does not limit. Seconds."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def holds(self, *, ttft_s: float, tpot_s: float | None, e2e_s: float) -> bool:
        """Whether every limit is kept; a request of one token has no TPOT to break."""
        pairs = ((ttft_s, self.ttft_s), (tpot_s, self.tpot_s), (e2e_s, self.e2e_s))
        return all(seen is None or limit is None or seen <= limit for seen, limit in pairs)


def parse_slo(text: str) -> Slo:
    """Reads `ttft=500ms,tpot=50ms,e2e=5s`; raises ConfigError that quotes the offending part."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name not in ("ttft", "tpot", "e2e") or name in limits:
            raise ConfigError(f"SLO {part!r}: expected each of ttft=, tpot=, e2e= at most once")
        limits[name] = parse_duration_s(value)
    return Slo(ttft_s=limits.get("ttft"), tpot_s=limits.get("tpot"), e2e_s=limits.get("e2e"))


def parse_duration_s(text: str) -> float:
    """Seconds in `500ms`, `1.5s` or `80us`; raises ConfigError."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"duration {text!r}: expected a number with us, ms or s, as in 500ms")
    return float(match[1]) * _UNITS_S[match[2]]
