"""Metrics of tenants and of the line. A tenant's label is its key's name, of so many at most."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from core import metric_names as names
from router.line.fair_queue import ORDER
from state.tenants import Denial, PriorityClass

MAX_TENANTS = 100
OTHER = "other"
SERVED = ("finished", "cancelled")


class TenantMetrics:
    """Adds its metrics to a router's registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._names: set[str] = set()
        self._requests = Counter(
            names.TENANT_REQUESTS_TOTAL,
            "Requests by key and by what came of them",
            ("tenant", "outcome"),
            registry=registry,
        )
        self._tokens = Counter(
            names.TENANT_TOKENS_TOTAL,
            "Tokens by key",
            ("tenant", "kind"),
            registry=registry,
        )
        self._limited = Counter(
            names.LIMITED_TOTAL,
            "Requests that a key's limit refused, by limit",
            ("limit",),
            registry=registry,
        )

    def limited(self, denial: Denial) -> None:
        self._limited.labels(denial).inc()

    def ended(self, name: str, outcome: str, prompt_tokens: int, output_tokens: int) -> None:
        """A request of the key with this name is over."""
        if name not in self._names:
            if len(self._names) >= MAX_TENANTS:
                name = OTHER
            self._names.add(name)
        self._requests.labels(name, outcome if outcome in SERVED else "failed").inc()
        if output_tokens:
            self._tokens.labels(name, "prompt").inc(prompt_tokens)
            self._tokens.labels(name, "output").inc(output_tokens)


def watch_line(
    registry: CollectorRegistry,
    *,
    num_waiting: Callable[[], dict[PriorityClass, int]],
    num_waiting_tokens: Callable[[], int],
    tokens_per_second: Callable[[], float | None],
) -> None:
    """Gauges that are asked at every scrape."""
    waiting = Gauge(
        names.LINE_WAITING, "Requests that wait at the router", ("class",), registry=registry
    )
    for each in ORDER:
        waiting.labels(each.value).set_function(partial(_of_class, num_waiting, each))
    tokens = Gauge(
        names.WAITING_PROMPT_TOKENS,
        "Prompt tokens in the house without a first output token",
        registry=registry,
    )
    tokens.set_function(num_waiting_tokens)
    rate = Gauge(
        names.PREFILL_TOKENS_PER_SECOND,
        "Prompt tokens that one worker computes in a second, as the admission of requests sees it",
        registry=registry,
    )
    rate.set_function(lambda: tokens_per_second() or 0.0)


def _of_class(
    num_waiting: Callable[[], dict[PriorityClass, int]], priority_class: PriorityClass
) -> int:
    return num_waiting()[priority_class]
