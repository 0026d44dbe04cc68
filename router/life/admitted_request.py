"""A request that passed the door: checked, tokenised, every value resolved."""

from __future__ import annotations

from dataclasses import dataclass

from core.request import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmittedRequest:
    """What a `RequestLife` serves. `deadline` is a moment on the router's clock."""

    request_id: str
    model: str
    token_ids: tuple[int, ...]
    n: int
    sampling: SamplingParams
    stop: tuple[str, ...]
    deadline: float
    priority: int
    cache_salt: str
    tenant: str
    grammar: str = ""
    """What every choice follows, as `text.structure` writes it."""
