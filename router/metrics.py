"""The router's metrics: what clients saw, and what came of the legs of their requests.

Every label has few values: outcomes and reasons come from closed sets, worker ids from membership.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from core import metric_names as names
from core.errors import TransferError
from core.request import AttemptDone, Phase
from router.fleet.leg_event import LegEnd
from router.fleet.worker_metrics import Loads, WorkerCollector
from router.life.served_life import ServedLife

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300)
SHORT_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5)

OUTCOMES = frozenset(
    {
        "finished",
        "cancelled",
        "internal_error",
        "invalid_api_key",
        "permission_denied",
        "insufficient_quota",
        "invalid_request",
        "context_length_exceeded",
        "content_policy_violation",
        "model_not_found",
        "service_unavailable",
        "rate_limit_exceeded",
        "deadline_exceeded",
        "worker_lost",
        "transfer_failed",
    }
)
TRANSFER_REASONS = frozenset(
    {
        "timeout",
        "peer_lost",
        "epoch_mismatch",
        "unknown_transfer",
        "repeated_transfer",
        "lease_expired",
        "corrupt",
        "incompatible",
        "aborted",
    }
)
OTHER = "other"


class RouterMetrics:
    """Owns a registry of its own, so that several routers fit into one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = self._counter(
            names.REQUESTS_TOTAL, "Requests by how they ended", "outcome"
        )
        self._running = Gauge(
            names.REQUESTS_RUNNING, "Requests in the house", registry=self.registry
        )
        self._ttft = self._histogram(names.TTFT_SECONDS, "Client's time to first token")
        self._queue = self._histogram(names.TTFT_QUEUE_SECONDS, "TTFT: waiting")
        self._tokenize = self._histogram(names.TTFT_TOKENIZE_SECONDS, "TTFT: tokenising")
        self._prefill = self._histogram(names.TTFT_PREFILL_SECONDS, "TTFT: prefill")
        self._gap = self._histogram(
            names.HANDOFF_GAP_SECONDS, "First token to second token", SHORT_SECONDS
        )
        self._total = self._histogram(names.E2E_SECONDS, "Request to last token")
        self._inter_token = self._histogram(
            names.INTER_TOKEN_SECONDS, "Time between tokens of one choice", SHORT_SECONDS
        )
        self._prompt_tokens = self._counter(names.PROMPT_TOKENS_TOTAL, "Prompt tokens")
        self._cached_tokens = self._counter(
            names.CACHED_TOKENS_TOTAL, "Prompt tokens found in a prefix cache"
        )
        self._output_tokens = self._counter(names.OUTPUT_TOKENS_TOTAL, "Tokens sent to clients")
        self._retries = self._counter(names.RETRIES_TOTAL, "Attempts after a choice's first")
        self._cancels = self._counter(names.CANCELS_TOTAL, "Requests whose client left")
        self._moves = self._counter(
            names.SEQUENCES_MOVED_TOTAL,
            "Choices that draining decode workers let go of, by what came of them",
            "outcome",
        )
        self._handoff = self._histogram(
            names.KV_HANDOFF_SECONDS, "End of P's last chunk to D's first step", SHORT_SECONDS
        )
        self._handoff_failures = self._counter(
            names.KV_HANDOFF_FAILURES_TOTAL, "Legs that failed for want of their KV", "reason"
        )

    def watch_workers(self, loads: Loads) -> None:
        """Shows the last load report of each worker; `loads` is asked at every scrape."""
        self.registry.register(WorkerCollector(loads))

    def render(self) -> bytes:
        """The registry in Prometheus' text format."""
        return generate_latest(self.registry)

    def started(self) -> None:
        self._running.inc()

    def tokens(self, count: int, since_last_s: float | None) -> None:
        """Tokens of one choice left together; `since_last_s` is None for its first ones."""
        self._output_tokens.inc(count)
        if since_last_s is not None:
            for _ in range(count):
                self._inter_token.observe(since_last_s / count)

    def refused(self, outcome: str) -> None:
        """A request that was never let in."""
        self._requests.labels(outcome if outcome in OUTCOMES else OTHER).inc()

    def finished(self, outcome: str, life: ServedLife | None) -> None:
        """A request is over; without a life its prompt was refused."""
        self._running.dec()
        self.refused(outcome)
        if outcome == "cancelled":
            self._cancels.inc()
        if life is not None:
            self._prompt_tokens.inc(len(life.request.token_ids))
            self._cached_tokens.inc(life.num_cached_tokens or 0)
            self._retries.inc(life.num_retries)
            for move, count in life.move_outcomes.items():
                self._moves.labels(move).inc(count)
            self._observe_timings(life)

    def leg_ended(self, phase: Phase, event: LegEnd) -> None:
        """A worker's word at the end of a leg: how the KV travelled."""
        if isinstance(event, AttemptDone):
            # Zero means that there was none: nothing to pull, or no prefill worker at all.
            if phase is Phase.DECODE and event.timings.handoff_s > 0:
                self._handoff.observe(event.timings.handoff_s)
        elif event.code == TransferError.code:
            reason = event.reason if event.reason in TRANSFER_REASONS else OTHER
            self._handoff_failures.labels(reason).inc()

    def _observe_timings(self, life: ServedLife) -> None:
        timings = life.timeline.timings()
        for histogram, seconds in (
            (self._ttft, timings.ttft_s),
            (self._queue, timings.queue_s),
            (self._tokenize, timings.tokenize_s),
            (self._prefill, timings.prefill_s),
            (self._gap, timings.handoff_gap_s),
            (self._total, timings.total_s),
        ):
            if seconds is not None:
                histogram.observe(seconds)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self.registry)
