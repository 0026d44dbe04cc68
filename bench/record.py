"""What the client saw of one request, as times and counts.

    started ----------- first token ---- ... ---- last token -- finished
            |<- TTFT ->|<-- ITL -->|                           |
            |<-------------------------- E2E ----------------->|

TPOT is the time from the first token to the last, divided by the tokens after the first. Tokens
are counted by the server's `usage`; a chunk may hold several tokens or a part of one, so ITL is the
gap between chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request's times in seconds of one clock, and its token counts by the server's account."""

    index: int
    started_s: float
    finished_s: float
    chunk_times_s: tuple[float, ...] = ()
    """Arrivals of the chunks that carried output."""
    last_token_s: float | None = None
    """Arrival of the last chunk of a choice; it may hold a token that decodes to no text."""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_output_tokens: int = 0
    error: str | None = None
    """A short label that says why the request does not count; None if it does."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Durations that the server reported about itself, by its own names."""

    @property
    def ok(self) -> bool:
        return self.error is None

    @property
    def ttft_s(self) -> float:
        """Time to the first output; only of a request that is ok."""
        return self.chunk_times_s[0] - self.started_s

    @property
    def tpot_s(self) -> float | None:
        """Mean time per token after the first; None for a single token."""
        if self.num_output_tokens < 2 or self.last_token_s is None:
            return None
        return (self.last_token_s - self.chunk_times_s[0]) / (self.num_output_tokens - 1)

    @property
    def e2e_s(self) -> float:
        return self.finished_s - self.started_s

    @property
    def itl_s(self) -> tuple[float, ...]:
        """Gaps between neighbouring chunks."""
        times = self.chunk_times_s
        return tuple(after - before for before, after in zip(times, times[1:], strict=False))
