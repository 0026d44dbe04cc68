"""API keys, what each may use, and what it has used: records, and the contract of who keeps them.

A `TenantStore` keeps keys and daily usage. `SharedLimits` are rates and concurrency that hold over
all routers; without them each router counts alone. Every call has a deadline; past it:
`StoreUnavailableError`.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

Denial = Literal["", "requests", "tokens", "too_large", "concurrency", "quota"]


class PriorityClass(enum.StrEnum):
    """How urgent a key's requests are; classes go strictly one before the other."""

    INTERACTIVE = "interactive"
    STANDARD = "standard"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What a key may use; None is without limit. Days are UTC."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_concurrency: int | None = None
    daily_tokens: int | None = None
    pinned_tokens: int | None = None
    """Prompt tokens that are pinned at once. Workers count them; beyond it nothing is refused but
    the pin."""

    @property
    def any(self) -> bool:
        """Whether a request has to be counted before it is served."""
        counted = (
            self.requests_per_minute,
            self.tokens_per_minute,
            self.max_concurrency,
            self.daily_tokens,
        )
        return any(value is not None for value in counted)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRecord:
    """One API key as it is stored: never the key itself. Times are Unix seconds."""

    key_id: str
    name: str
    secret_hash: str
    """SHA-256 of the key's secret part, which is too random to be guessed."""
    priority_class: PriorityClass = PriorityClass.STANDARD
    limits: KeyLimits = KeyLimits()
    created_at: float = 0.0
    expires_at: float | None = None
    revoked_at: float | None = None
    isolate_cache: bool = True
    """Prefixes are shared with no other key."""
    cache_salt: str = ""
    models: tuple[str, ...] = ()
    """Models it may ask; empty: all."""
    endpoints: tuple[str, ...] = ()
    """Paths it may call, or their beginnings; empty: all."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


def key_from_json(text: str | bytes) -> KeyRecord:
    """Ignores fields that a newer release added."""
    fields = json.loads(text)
    known = {f.name: fields[f.name] for f in dataclasses.fields(KeyRecord) if f.name in fields}
    known["priority_class"] = PriorityClass(known["priority_class"])
    known["limits"] = KeyLimits(**known["limits"])
    for name in ("models", "endpoints"):
        known[name] = tuple(known.get(name, ()))
    return KeyRecord(**known)


COUNTERS = (
    "requests",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "weighted_tokens",
    "cost_nanos",
    "pinned_token_seconds",
)


@dataclass(frozen=True, slots=True)
class UsageRow:
    """What one key used of one model on one day, online or in batches."""

    day: str
    """YYYY-MM-DD, UTC."""
    key_id: str
    model: str
    batch: bool
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """Of the prompt tokens, those found in a prefix cache."""
    output_tokens: int = 0
    weighted_tokens: int = 0
    """What counts towards limits and quotas."""
    cost_nanos: int = 0
    """Billionths of the price table's money."""
    pinned_token_seconds: int = 0
    """Tokens that were pinned times the seconds for which they were, as granted."""

    @property
    def slot(self) -> tuple[str, str, str, bool]:
        return (self.day, self.key_id, self.model, self.batch)

    @property
    def counts(self) -> tuple[int, ...]:
        """In the order of `COUNTERS`."""
        return tuple(getattr(self, name) for name in COUNTERS)

    def plus(self, other: UsageRow) -> UsageRow:
        assert self.slot == other.slot
        sums = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        return UsageRow(*self.slot, *sums)


@dataclass(frozen=True, slots=True)
class LimitDemand:
    """What one request asks of its key's limits. A lease counts as one running request."""

    key_id: str
    limits: KeyLimits
    day: str
    num_requests: int
    num_tokens: int
    lease_id: str | None
    lease_s: float


@dataclass(frozen=True, slots=True)
class Level:
    """One limit as a client is told of it."""

    limit: int
    remaining: int
    reset_s: float
    """Until all of it is there again."""


@dataclass(frozen=True, slots=True)
class LimitVerdict:
    """Whether the demand was granted (`denial` empty), and how the limits stand."""

    denial: Denial
    retry_after_s: float
    requests: Level | None
    tokens: Level | None
    quota_used: int
    """Weighted tokens of the day, this request's included."""
    alone: bool = False
    """One router's own word, while it could not reach the shared limits."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """What became of granted demands of one key and day: differences to what was charged."""

    key_id: str
    day: str
    limits: KeyLimits
    lease_ids: tuple[str, ...] = ()
    num_requests: int = 0
    num_tokens: int = 0
    quota_tokens: int = 0
    """More, or less than was charged, of the rate and of the day's quota."""
    usage: tuple[UsageRow, ...] = ()
    shares: tuple[float, float] = (1.0, 1.0)
    """At most this much of requests and tokens is left, as a share of the limit: what a router
    granted alone while it could not reach the shared limits."""


class TenantStore(Protocol):
    """Keys and usage: `state.redis_tenants`, or `state.file_tenants` on one machine."""

    async def put_key(self, record: KeyRecord) -> None:
        """Adds or replaces the key of this id."""
        ...

    async def get_key(self, key_id: str) -> KeyRecord | None: ...

    async def keys(self) -> tuple[KeyRecord, ...]:
        """All keys, revoked ones included, in order of their making."""
        ...

    async def settle(self, router_id: str, sequence: int, batch: Sequence[Settlement]) -> None:
        """Takes a batch once, however often it is sent; `sequence` grows with each batch."""
        ...

    async def usage(self, day: str, key_id: str | None = None) -> tuple[UsageRow, ...]:
        """What was used on a day, by everybody or by one key."""
        ...

    async def close(self) -> None:
        """Ends connections. Idempotent."""
        ...


class SharedLimits(Protocol):
    """Limits that hold over all routers."""

    async def acquire(self, demand: LimitDemand) -> LimitVerdict:
        """Checks and takes all of the demand, or nothing: atomic."""
        ...

    async def beat(self, router_id: str, *, ttl_s: float) -> int:
        """This router is here; how many are."""
        ...
