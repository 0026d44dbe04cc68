"""Token buckets (pure): a limit a minute that fills evenly and holds one minute's worth at most.

Over any w seconds a bucket grants at most `capacity x (1 + w / 60)`. What is only known afterwards
(an answer's length) may leave it below zero; then nothing is granted until that is made up for.
"""

from __future__ import annotations

from dataclasses import dataclass

PERIOD_S = 60.0


@dataclass(slots=True)
class TokenBucket:
    """`capacity` refills within PERIOD_S; times are of any one clock, in seconds."""

    capacity: float
    level: float
    at: float

    @classmethod
    def full(cls, capacity: float, now: float) -> TokenBucket:
        return cls(capacity, capacity, now)

    @property
    def rate(self) -> float:
        """Refill in a second."""
        return self.capacity / PERIOD_S

    def refill(self, now: float) -> float:
        """The level now."""
        elapsed = max(0.0, now - self.at)
        self.level = min(self.capacity, self.level + elapsed * self.rate)
        self.at = max(self.at, now)
        return self.level

    def wait_s(self, cost: float, now: float) -> float:
        """How long until `cost` could be taken; 0: now. More than fits is granted when full."""
        missing = min(cost, self.capacity) - self.refill(now)
        return max(0.0, missing / self.rate)

    def take(self, cost: float, now: float) -> None:
        """Takes it in any case; a negative cost gives back."""
        self.level = min(self.capacity, self.refill(now) - cost)

    def resize(self, capacity: float, now: float) -> None:
        """Another limit: as full, as a share of it, as before."""
        if capacity != self.capacity:
            share = self.refill(now) / self.capacity
            self.capacity, self.level = capacity, share * capacity

    @property
    def share(self) -> float:
        """How full it was when last looked at; at most 1, below 0 in debt."""
        return self.level / self.capacity
