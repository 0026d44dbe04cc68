"""What of a prompt a client wants to stay cached, in Anthropic's manner: `cache_control`."""

from __future__ import annotations

from dataclasses import dataclass

from core.errors import BadRequestError

MAX_BREAKPOINTS = 4
"""Anthropic's limit for one request."""
DEFAULT_TTL = "5m"
TTLS_S = {"5m": 300.0, "1h": 3600.0}


@dataclass(frozen=True, slots=True)
class Breakpoint:
    """The conversation up to `end` characters into a message's text is to stay cached."""

    message: int
    """Its index."""
    end: int | None
    """None: to the end of the text, whatever that is."""
    ttl_s: float


def ttl_s_of(ttl: str | None) -> float:
    """The lifetime by its name. Raises BadRequestError."""
    ttl_s = TTLS_S.get(ttl or DEFAULT_TTL)
    if ttl_s is None:
        raise bad_cache_control()
    return ttl_s


def bad_cache_control() -> BadRequestError:
    """Names the field, wherever it stands."""
    return BadRequestError(
        'cache_control must have the type "ephemeral", and as ttl "5m", "1h" or none',
        param="cache_control",
        code="invalid_type",
    )
