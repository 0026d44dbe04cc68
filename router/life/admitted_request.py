"""A request that passed the door: checked, tokenised, every value resolved."""

from __future__ import annotations

from dataclasses import dataclass

from core.request import PinWish, SamplingParams
from core.trace_context import TraceContext, attempt_span_id


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
    pins: PinWish | None = None
    """What is to stay cached of the prompt; None: the client asked for nothing."""
    trace: TraceContext | None = None
    """The request's own span, if it is part of a trace."""

    def trace_context_of(self, transfer_id: str) -> str:
        """For workers: the span that theirs go below."""
        if self.trace is None:
            return ""
        return self.trace.below(attempt_span_id(transfer_id)).encode()
