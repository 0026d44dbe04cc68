"""One attempt of a request: who served it, when what happened to it, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from core.errors import TandemError
from core.request import LegTimings, Phase


@dataclass(slots=True, kw_only=True)
class AttemptTimeline:
    """Moments on the router's clock; None for what it never reached."""

    number: int
    """From 1 on, over all choices of the request."""
    transfer_id: str
    choices: tuple[int, ...]
    num_tokens: int
    """Prompt, and what had been emitted."""
    prefill_worker: str
    """Who computes them, or has their KV; empty: the decode worker itself."""
    decode_worker: str
    sent: float
    follows_kv: bool = False
    """Nothing is computed: the KV of another attempt moves on."""
    started: float | None = None
    num_cached_tokens: int = 0
    decoding: float | None = None
    """The decode worker's first token came in."""
    ended: float | None = None
    legs: dict[Phase, LegTimings] = field(default_factory=dict)
    """What workers said of their legs when they ended well."""
    failed_leg: Phase | None = None
    error_code: str = ""
    error_reason: str = ""

    @property
    def outcome(self) -> str:
        if self.ended is None:
            return "running"
        return self.error_code or "ended"

    def failed(self, leg: Phase, error: TandemError) -> None:
        self.failed_leg = leg
        self.error_code = error.code
        self.error_reason = str(getattr(error, "reason", ""))
