"""What a request counts for: towards limits and quotas, and in money (pure)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from router.tenants.prices import Price
from state.tenants import UsageRow


@dataclass(frozen=True, slots=True)
class Weights:
    """What one token counts, where it is less than one."""

    cached: float
    batch: float


def weighted_tokens(
    weights: Weights, *, prompt_tokens: int, cached_tokens: int, output_tokens: int, batch: bool
) -> int:
    """Rounded up. `cached_tokens` are part of `prompt_tokens`."""
    full = prompt_tokens - cached_tokens + output_tokens
    tokens = full + weights.cached * cached_tokens
    return math.ceil(tokens * (weights.batch if batch else 1.0))


def usage_row(
    weights: Weights,
    price: Price,
    *,
    day: str,
    key_id: str,
    model: str,
    batch: bool,
    num_requests: int,
    prompt_tokens: int,
    cached_tokens: int,
    output_tokens: int,
    pinned_token_seconds: float = 0.0,
) -> UsageRow:
    """One request's entry in its day's books."""
    cost_nanos = price.cost_nanos(
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        output_tokens=output_tokens,
        pinned_token_seconds=pinned_token_seconds,
        batch=batch,
    )
    weighted = weighted_tokens(
        weights,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        output_tokens=output_tokens,
        batch=batch,
    )
    return UsageRow(
        day=day,
        key_id=key_id,
        model=model,
        batch=batch,
        requests=num_requests,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        output_tokens=output_tokens,
        weighted_tokens=weighted,
        cost_nanos=cost_nanos,
        pinned_token_seconds=round(pinned_token_seconds),
    )


def day_of(unix_s: float) -> str:
    """YYYY-MM-DD in UTC."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d")


def seconds_to_midnight(unix_s: float) -> float:
    """Until the next day in UTC begins."""
    now = datetime.fromtimestamp(unix_s, UTC)
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
    return (midnight - now).total_seconds()
