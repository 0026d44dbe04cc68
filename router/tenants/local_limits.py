"""The limits of all keys as one router counts them (pure).

With shared limits it is kept alongside, so that it knows what this router has granted when the
shared ones can't be reached; then each router grants its `share` of every limit.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from router.tenants.buckets import TokenBucket
from state.tenants import Denial, KeyLimits, Level, LimitDemand, LimitVerdict, Settlement


@dataclass(slots=True)
class _Books:
    """One key's."""

    requests: TokenBucket | None = None
    tokens: TokenBucket | None = None
    leases: set[str] = field(default_factory=set)
    day: str = ""
    quota_used: int = 0


class LocalLimits:
    """Counts by a clock whose moments are passed in."""

    def __init__(self) -> None:
        self._books: dict[str, _Books] = {}
        self.num_routers = 1

    @property
    def _share(self) -> float:
        return 1.0 / self.num_routers

    def knows_quota(self, key_id: str, day: str) -> bool:
        books = self._books.get(key_id)
        return books is not None and books.day == day

    def note_quota(self, key_id: str, day: str, used: int) -> None:
        """What the store says was used on that day."""
        books = self._books.setdefault(key_id, _Books())
        books.day, books.quota_used = day, used

    def acquire(self, demand: LimitDemand, now: float) -> LimitVerdict:
        """Grants all of the demand or nothing."""
        books = self._open(demand, now)
        limits = demand.limits
        denial, wait_s = self._denial(books, demand, now)
        if not denial:
            self._take(books, demand, now)
        return LimitVerdict(
            denial=denial,
            retry_after_s=wait_s,
            requests=_level(limits.requests_per_minute, books.requests),
            tokens=_level(limits.tokens_per_minute, books.tokens),
            quota_used=books.quota_used,
        )

    def shadow(self, demand: LimitDemand, quota_used: int, now: float) -> None:
        """The shared limits granted it; here it only has to be remembered."""
        books = self._open(demand, now)
        self._take(books, demand, now)
        books.quota_used = quota_used
        for bucket in (books.requests, books.tokens):
            if bucket is not None:
                # More than our share may have been ours while others were idle: that is no debt.
                bucket.level = max(0.0, bucket.level)

    def settle(self, settlement: Settlement, now: float) -> None:
        """Takes back, or takes more, and ends leases."""
        books = self._books.get(settlement.key_id)
        if books is None:
            return
        books.leases.difference_update(settlement.lease_ids)
        if books.day == settlement.day:
            books.quota_used += settlement.quota_tokens
        if books.requests is not None:
            books.requests.take(settlement.num_requests, now)
        if books.tokens is not None:
            books.tokens.take(settlement.num_tokens, now)

    def shares_left(self, now: float) -> dict[str, tuple[float, float]]:
        """Of each key that is not at its full: how much of its requests and tokens is left."""
        left = {}
        for key_id, books in self._books.items():
            shares = (_share_left(books.requests, now), _share_left(books.tokens, now))
            if min(shares) < 1.0:
                left[key_id] = shares
        return left

    def num_running(self, key_id: str) -> int:
        books = self._books.get(key_id)
        return 0 if books is None else len(books.leases)

    def _open(self, demand: LimitDemand, now: float) -> _Books:
        """The key's books for today and its present limits."""
        books = self._books.setdefault(demand.key_id, _Books())
        if books.day != demand.day:
            books.day, books.quota_used = demand.day, 0
        limits, share = demand.limits, self._share
        books.requests = _resized(books.requests, limits.requests_per_minute, share, now)
        books.tokens = _resized(books.tokens, limits.tokens_per_minute, share, now)
        return books

    def _denial(self, books: _Books, demand: LimitDemand, now: float) -> tuple[Denial, float]:
        limits: KeyLimits = demand.limits
        daily, concurrency = limits.daily_tokens, limits.max_concurrency
        if daily is not None and books.quota_used + demand.num_tokens > daily:
            return "quota", 0.0
        takes_lease = concurrency is not None and demand.lease_id is not None
        if takes_lease and len(books.leases) >= max(1, int((concurrency or 0) * self._share)):
            return "concurrency", 1.0
        if books.requests is not None:
            wait_s = books.requests.wait_s(demand.num_requests, now)
            if wait_s > 0:
                return "requests", wait_s
        if books.tokens is not None:
            if demand.num_tokens > (limits.tokens_per_minute or 0):
                return "too_large", 0.0
            wait_s = books.tokens.wait_s(demand.num_tokens, now)
            if wait_s > 0:
                return "tokens", wait_s
        return "", 0.0

    def _take(self, books: _Books, demand: LimitDemand, now: float) -> None:
        if books.requests is not None:
            books.requests.take(demand.num_requests, now)
        if books.tokens is not None:
            books.tokens.take(demand.num_tokens, now)
        if demand.lease_id is not None:
            books.leases.add(demand.lease_id)
        books.quota_used += demand.num_tokens


def _resized(
    bucket: TokenBucket | None, limit: int | None, share: float, now: float
) -> TokenBucket | None:
    if limit is None:
        return None
    capacity = max(1.0, limit * share)
    if bucket is None:
        return TokenBucket.full(capacity, now)
    bucket.resize(capacity, now)
    return bucket


def _share_left(bucket: TokenBucket | None, now: float) -> float:
    if bucket is None:
        return 1.0
    bucket.refill(now)
    return max(0.0, bucket.share)


def _level(limit: int | None, bucket: TokenBucket | None) -> Level | None:
    if limit is None or bucket is None:
        return None
    missing = max(0.0, bucket.capacity - bucket.level)
    return Level(limit, max(0, int(bucket.level)), missing / bucket.rate)
