"""The router's metrics: what clients saw, and what came of the legs of their requests.

Every label has few values: outcomes, reasons and classes come from closed sets, worker ids from
membership, and there is one model.
"""

from __future__ import annotations

from itertools import chain
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.registry import Collector

from core import metric_names as names
from core.errors import TransferError
from core.request import AttemptDone, Phase
from router.fleet.leg_event import LegEnd
from router.fleet.worker_metrics import Loads, WorkerCollector
from router.life.served_life import ServedLife
from router.observe.request_record import DEFAULT_CLASS, PRIORITY_CLASSES, RequestRecord
from router.observe.running import Records, RunningCollector
from router.observe.token_meter import TokenCollector, TokenMeter
from router.observe.vllm_names import VllmNames

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300)
SHORT_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5)
TOKENS = tuple(float(2**power) for power in range(0, 21, 2))
LABELS = ("model", "priority_class")

C = TypeVar("C", bound=Collector)

FINISH_REASONS = frozenset({"", "stop", "length", "tool_calls", "content_filter"})
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
    """Owns a registry of its own, so that several routers fit into one process.

    What is counted once a request is by model and priority class; what workers say, by worker.
    """

    def __init__(self, model: str, vllm_names: bool) -> None:
        self.registry = CollectorRegistry()
        self._model = model
        self._vllm_names = vllm_names
        self._meters: dict[str, TokenMeter] = {}
        self._shown: list[Collector] = []
        """What vLLM's names are made from."""
        self.meter(DEFAULT_CLASS)  # there from the first scrape on
        self._show(TokenCollector(LABELS, lambda: {(model, c): m for c, m in self._meters.items()}))
        self._requests = self._counter(
            names.REQUESTS_TOTAL,
            "Requests by how they ended, and by the finish reason of the first choice",
            "outcome",
            "finish_reason",
        )
        self._ttft = self._histogram(names.TTFT_SECONDS, "Client's time to first token")
        self._queue = self._histogram(names.TTFT_QUEUE_SECONDS, "TTFT: waiting")
        self._tokenize = self._histogram(names.TTFT_TOKENIZE_SECONDS, "TTFT: tokenising")
        self._prefill = self._histogram(names.TTFT_PREFILL_SECONDS, "TTFT: prefill")
        self._gap = self._histogram(
            names.HANDOFF_GAP_SECONDS, "First token to second token", SHORT_SECONDS
        )
        self._total = self._histogram(names.E2E_SECONDS, "Request to last token")
        self._tpot = self._histogram(
            names.TPOT_SECONDS, "Mean time between tokens of a request's choices", SHORT_SECONDS
        )
        self._prompt_lens = self._histogram(
            names.REQUEST_PROMPT_TOKENS, "Prompt tokens of a request", TOKENS
        )
        self._output_lens = self._histogram(
            names.REQUEST_OUTPUT_TOKENS, "Output tokens of a request", TOKENS
        )
        self._prompt_tokens = self._counter(names.PROMPT_TOKENS_TOTAL, "Prompt tokens")
        self._cached_tokens = self._counter(
            names.CACHED_TOKENS_TOTAL, "Prompt tokens found in a prefix cache"
        )
        self._pins = self._counter(
            names.PIN_REQUESTS_TOTAL,
            "Requests that asked for their prompt to stay cached, by whether some of it does",
            "outcome",
        )
        self._retries = self._counter(names.RETRIES_TOTAL, "Attempts after a choice's first")
        self._cancels = self._counter(names.CANCELS_TOTAL, "Requests whose client left")
        self._moves = Counter(
            names.SEQUENCES_MOVED_TOTAL,
            "Choices that draining decode workers let go of, by what came of them",
            ("outcome",),
            registry=self.registry,
        )
        self._handoff = Histogram(
            names.KV_HANDOFF_SECONDS,
            "End of P's last chunk to D's first step",
            buckets=SHORT_SECONDS,
            registry=self.registry,
        )
        self._handoff_failures = Counter(
            names.KV_HANDOFF_FAILURES_TOTAL,
            "Legs that failed for want of their KV",
            ("reason",),
            registry=self.registry,
        )

    def watch(self, records: Records, loads: Loads) -> None:
        """Shows the requests in the house and the last load report of each worker, which are asked
        for at every scrape."""
        self._show(RunningCollector(self._model, records))
        self.registry.register(WorkerCollector(loads))
        if self._vllm_names:
            ours = self._shown
            self.registry.register(
                VllmNames(
                    self._model, lambda: chain.from_iterable(c.collect() for c in ours), loads
                )
            )

    def render(self) -> bytes:
        """The registry in Prometheus' text format."""
        return generate_latest(self.registry)

    def meter(self, priority_class: str) -> TokenMeter:
        """What counts this class's tokens."""
        meter = self._meters.get(priority_class)
        if meter is None:
            meter = self._meters.setdefault(_class_label(priority_class), TokenMeter())
        return meter

    def refused(self, outcome: str) -> None:
        """A request that was never let in."""
        self._count(outcome, DEFAULT_CLASS, "")

    def finished(self, record: RequestRecord, life: ServedLife | None) -> None:
        """A request is over; without a life its prompt was refused."""
        labels = (self._model, _class_label(record.priority_class))
        reason = record.finish_reasons[0] if record.finish_reasons else ""
        self._count(record.outcome, record.priority_class, reason)
        if record.outcome == "cancelled":
            self._cancels.labels(*labels).inc()
        if life is not None:
            self._prompt_tokens.labels(*labels).inc(record.num_prompt_tokens)
            self._prompt_lens.labels(*labels).observe(record.num_prompt_tokens)
            self._output_lens.labels(*labels).observe(record.num_output_tokens)
            self._cached_tokens.labels(*labels).inc(record.num_cached_tokens)
            self._retries.labels(*labels).inc(life.num_retries)
            if record.num_pinned_tokens is not None:
                granted = "pinned" if record.num_pinned_tokens else "not_pinned"
                self._pins.labels(*labels, granted).inc()
            for move, count in life.move_outcomes.items():
                self._moves.labels(move).inc(count)
            self._observe_timings(record, labels)

    def leg_ended(self, phase: Phase, event: LegEnd) -> None:
        """A worker's word at the end of a leg: how the KV travelled."""
        if isinstance(event, AttemptDone):
            # Zero means that there was none: nothing to pull, or no prefill worker at all.
            if phase is Phase.DECODE and event.timings.handoff_s > 0:
                self._handoff.observe(event.timings.handoff_s)
        elif event.code == TransferError.code:
            reason = event.reason if event.reason in TRANSFER_REASONS else OTHER
            self._handoff_failures.labels(reason).inc()

    def _count(self, outcome: str, priority_class: str, finish_reason: str) -> None:
        self._requests.labels(
            self._model,
            _class_label(priority_class),
            outcome if outcome in OUTCOMES else OTHER,
            finish_reason if finish_reason in FINISH_REASONS else OTHER,
        ).inc()

    def _observe_timings(self, record: RequestRecord, labels: tuple[str, str]) -> None:
        """Phases of requests that have a first token: so that they add up."""
        timings = record.timeline.timings()
        observed = [(self._gap, timings.handoff_gap_s)]
        if timings.ttft_s is not None:
            observed += [
                (self._ttft, timings.ttft_s),
                (self._queue, timings.queue_s),
                (self._tokenize, timings.tokenize_s),
                (self._prefill, timings.prefill_s),
            ]
        if record.outcome == "finished":
            observed.append((self._total, timings.total_s))
            observed.append((self._tpot, record.tpot_s))
        for histogram, seconds in observed:
            if seconds is not None:
                histogram.labels(*labels).observe(seconds)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return self._show(Counter(name, text, (*LABELS, *labels), registry=None))

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = SECONDS) -> Histogram:
        return self._show(Histogram(name, text, LABELS, buckets=buckets, registry=None))

    def _show(self, collector: C) -> C:
        self.registry.register(collector)
        self._shown.append(collector)
        return collector


def _class_label(priority_class: str) -> str:
    return priority_class if priority_class in PRIORITY_CLASSES else OTHER
