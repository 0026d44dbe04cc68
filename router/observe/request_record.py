"""What is remembered of one request: who asked, what became of it, when; never its text.

It is made when the request arrives, filled in when it ends, and then only read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from core.trace_context import TraceContext
from core.tracing import Value
from router.life.served_life import ServedLife, num_pinned_tokens
from router.life.timeline import RequestTimeline

PRIORITY_CLASSES = ("interactive", "standard", "batch")
DEFAULT_CLASS = "standard"

State = Literal["waiting", "running", "ended"]


@dataclass(slots=True, kw_only=True)
class RequestRecord:
    """One request, which is one prompt of a call."""

    request_id: str
    client_id: str
    operation: Literal["chat", "text_completion"]
    model: str
    timeline: RequestTimeline
    wall_offset_ns: int
    """Added to the timeline's moments, in nanoseconds, it gives those of the epoch."""
    tenant: str = ""
    priority_class: str = DEFAULT_CLASS
    trace: TraceContext | None = None
    """The request's own span; None: it belongs to no trace."""
    parent_span_id: str | None = None
    asked: Mapping[str, Value] = field(default_factory=dict)
    """Attributes of its span; empty where it has none."""
    outcome: str = ""
    """Empty while it runs."""
    error_message: str = ""
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_pinned_tokens: int | None = None
    """None: it did not ask for any to stay cached."""
    num_output_tokens: int = 0
    num_choices: int = 0
    num_retries: int = 0
    finish_reasons: tuple[str, ...] = ()
    """Of choices that ended well."""
    prefill_worker: str = ""
    decode_worker: str = ""

    @property
    def state(self) -> State:
        if self.outcome:
            return "ended"
        return "waiting" if self.timeline.started is None else "running"

    @property
    def trace_id(self) -> str:
        return "" if self.trace is None else self.trace.trace_id

    @property
    def tpot_s(self) -> float | None:
        """Mean time between the tokens of its choices, in seconds, once it has ended well; None
        where no choice had a second token."""
        timings, num_gaps = self.timeline.timings(), self.num_output_tokens - self.num_choices
        if self.outcome != "finished" or num_gaps <= 0:
            return None
        if timings.total_s is None or timings.ttft_s is None:
            return None
        return (timings.total_s - timings.ttft_s) * self.num_choices / num_gaps

    def end(self, outcome: str, life: ServedLife | None) -> None:
        """The request is over; without a life its prompt was refused."""
        self.outcome = outcome
        self.timeline.on_first_token = None  # it would keep the whole request as long as the record
        if life is None:
            return
        self.num_prompt_tokens = len(life.request.token_ids)
        self.num_cached_tokens = life.num_cached_tokens or 0
        self.num_pinned_tokens = num_pinned_tokens(life)
        self.num_output_tokens = life.num_output_tokens
        self.num_choices = len(life.choices)
        self.num_retries = life.num_retries
        self.finish_reasons = tuple(
            str(choice.finish_reason) for choice in life.choices if choice.finish_reason
        )
        self.prefill_worker = life.prefill_worker
        self.decode_worker = life.decode_worker

    def epoch_ns(self, moment_s: float) -> int:
        return round(moment_s * 1e9) + self.wall_offset_ns
