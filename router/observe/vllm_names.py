"""The same metrics under vLLM's names, for dashboards and autoscalers that know those.

They are made at a scrape from what our own names show then, so they cost nothing in between.
Priority classes are added up; `model_name` and `engine` are vLLM's labels, and a worker is an
engine. Names and meanings: vLLM's docs/usage/metrics.md, with those that older dashboards ask for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from core import metric_names as names
from router.fleet.worker_metrics import Loads

ROUTER = "router"
"""The `engine` of what the whole house does."""
LABELS = ("model_name", "engine")
_FREE = ("free", "cached")

HISTOGRAMS = {
    names.TTFT_SECONDS: ("time_to_first_token_seconds",),
    names.INTER_TOKEN_SECONDS: ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    names.TPOT_SECONDS: ("request_time_per_output_token_seconds",),
    names.E2E_SECONDS: ("e2e_request_latency_seconds",),
    names.TTFT_QUEUE_SECONDS: ("request_queue_time_seconds",),
    names.TTFT_PREFILL_SECONDS: ("request_prefill_time_seconds",),
    names.REQUEST_PROMPT_TOKENS: ("request_prompt_tokens",),
    names.REQUEST_OUTPUT_TOKENS: ("request_generation_tokens",),
}
COUNTERS = {
    names.PROMPT_TOKENS_TOTAL: ("prompt_tokens", "prefix_cache_queries"),
    names.CACHED_TOKENS_TOTAL: ("prefix_cache_hits",),
    names.OUTPUT_TOKENS_TOTAL: ("generation_tokens",),
}
GAUGES = {
    names.REQUESTS_RUNNING: ("num_requests_running",),
    names.REQUESTS_WAITING: ("num_requests_waiting",),
}
ERRORS = frozenset(
    {
        "internal_error",
        "service_unavailable",
        "deadline_exceeded",
        "worker_lost",
        "transfer_failed",
        "other",
    }
)
"""Outcomes that are no client's fault; vLLM counts no others."""
FINISHED = {"stop": "stop", "length": "length", "tool_calls": "stop", "content_filter": "stop"}
"""Our finish reasons and vLLM's."""


class VllmNames(Collector):
    """`ours` gives the families to be shown again, `loads` the workers' last reports."""

    def __init__(self, model: str, ours: Callable[[], Iterable[Metric]], loads: Loads) -> None:
        self._model = model
        self._ours = ours
        self._loads = loads

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        for metric in self._ours():
            # A family of counters is called without the suffix that its samples have.
            name = metric.name + "_total" if metric.type == "counter" else metric.name
            for alias in HISTOGRAMS.get(name, ()):
                yield self._histogram(alias, metric)
            for alias in COUNTERS.get(name, ()):
                yield self._counter(alias, metric)
            for alias in GAUGES.get(name, ()):
                family = GaugeMetricFamily(_name(alias), metric.documentation, labels=LABELS)
                family.add_metric((self._model, ROUTER), _sum(metric, metric.name))
                yield family
            if name == names.REQUESTS_TOTAL:
                yield self._success(metric)
        yield from self._workers()

    def _counter(self, alias: str, metric: Metric) -> Metric:
        family = CounterMetricFamily(_name(alias), metric.documentation, labels=LABELS)
        family.add_metric((self._model, ROUTER), _sum(metric, f"{metric.name}_total"))
        return family

    def _histogram(self, alias: str, metric: Metric) -> Metric:
        family = HistogramMetricFamily(_name(alias), metric.documentation, labels=LABELS)
        buckets: dict[str, float] = defaultdict(float)
        for sample in metric.samples:
            if sample.name == f"{metric.name}_bucket":
                buckets[sample.labels["le"]] += sample.value
        if buckets:
            total_s = _sum(metric, f"{metric.name}_sum")
            family.add_metric((self._model, ROUTER), list(buckets.items()), total_s)
        return family

    def _success(self, metric: Metric) -> Metric:
        """Requests by how they ended; those that were refused are none of vLLM's."""
        family = CounterMetricFamily(
            _name("request_success"), metric.documentation, labels=(*LABELS, "finished_reason")
        )
        ended: dict[str, float] = dict.fromkeys(("stop", "length", "abort", "error"), 0.0)
        for sample in metric.samples:
            if sample.name == names.REQUESTS_TOTAL and (reason := _reason(sample.labels)):
                ended[reason] += sample.value
        for reason, count in ended.items():
            family.add_metric((self._model, ROUTER, reason), count)
        return family

    def _workers(self) -> Iterator[Metric]:
        loads = [(member.worker_id, load) for member, load in self._loads()]
        for alias in ("kv_cache_usage_perc", "gpu_cache_usage_perc"):
            usage = GaugeMetricFamily(
                _name(alias), "KV blocks that are in use; 1 is all of them", labels=LABELS
            )
            for worker_id, load in loads:
                if load.num_blocks:
                    free = sum(load.kv_blocks.get(state, 0) for state in _FREE)
                    usage.add_metric((self._model, worker_id), 1 - free / load.num_blocks)
            yield usage
        preemptions = CounterMetricFamily(
            _name("num_preemptions"), "Preempted sequences", labels=LABELS
        )
        for worker_id, load in loads:
            preemptions.add_metric((self._model, worker_id), load.num_preemptions)
        yield preemptions


def _reason(labels: dict[str, str]) -> str | None:
    match labels["outcome"]:
        case "finished":
            return FINISHED.get(labels["finish_reason"], "stop")
        case "cancelled":
            return "abort"
        case outcome:
            return "error" if outcome in ERRORS else None


def _sum(metric: Metric, sample_name: str) -> float:
    return sum(sample.value for sample in metric.samples if sample.name == sample_name)


def _name(alias: str) -> str:
    return names.VLLM_PREFIX + alias
