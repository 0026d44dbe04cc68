"""How limits look to a client: OpenAI's `x-ratelimit-*` headers, and errors with `Retry-After`."""

from __future__ import annotations

import math

from core.errors import OverloadedError, QuotaError, RateLimitedError
from state.tenants import KeyLimits, LimitVerdict


def limit_headers(verdict: LimitVerdict) -> dict[str, str]:
    """One set for each limit that the key has."""
    headers = {}
    for name, level in (("requests", verdict.requests), ("tokens", verdict.tokens)):
        if level is not None:
            headers[f"x-ratelimit-limit-{name}"] = str(level.limit)
            headers[f"x-ratelimit-remaining-{name}"] = str(level.remaining)
            headers[f"x-ratelimit-reset-{name}"] = duration(level.reset_s)
    return headers


def duration(seconds: float) -> str:
    """As OpenAI writes it: 17ms, 6.25s, 1m30s, 2h5m0s."""
    milliseconds = math.ceil(max(0.0, seconds) * 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    minutes, milliseconds = divmod(milliseconds, 60_000)
    rest = f"{milliseconds / 1000:g}s"
    if minutes >= 60:
        return f"{minutes // 60}h{minutes % 60}m{rest}"
    return f"{minutes}m{rest}" if minutes else rest


def denied(
    verdict: LimitVerdict, limits: KeyLimits, *, num_tokens: int, to_midnight_s: float
) -> OverloadedError:
    """What the client hears whose demand was not granted."""
    wait_s = verdict.retry_after_s
    match verdict.denial:
        case "quota":
            return QuotaError(
                f"this key may use {limits.daily_tokens} tokens a day and has used "
                f"{verdict.quota_used}; this request has {num_tokens}. Days begin at midnight UTC",
                reason="quota",
                retry_after_s=to_midnight_s,
            )
        case "concurrency":
            message = f"this key may run {limits.max_concurrency} requests at once"
        case "requests":
            message = (
                f"this key may make {limits.requests_per_minute} requests a minute; try again in "
                f"{duration(wait_s)}"
            )
        case "too_large":
            message = (
                f"the request has {num_tokens} tokens, and this key may use "
                f"{limits.tokens_per_minute} a minute: it must be shorter"
            )
        case _:
            message = (
                f"this key may use {limits.tokens_per_minute} tokens a minute, and the request has "
                f"{num_tokens}; try again in {duration(wait_s)}"
            )
    return RateLimitedError(message, reason=verdict.denial, retry_after_s=max(1.0, wait_s))
