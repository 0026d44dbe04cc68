"""What workers report about themselves, as metrics of the router that hears it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from typing import TypeAlias

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from core import metric_names as names
from core.histogram import Histogram
from core.load import LoadReport, StepTotals
from state.store import Member

Loads: TypeAlias = Callable[[], Iterable[tuple[Member, LoadReport]]]
_Labelled: TypeAlias = list[tuple[tuple[str, str], LoadReport]]
_OfSteps: TypeAlias = Callable[[StepTotals], float]
_LABELS = ("worker", "role")
_LABELS_STATE = (*_LABELS, "state")
_LABELS_REASON = (*_LABELS, "reason")
_STEP_TOTALS: tuple[tuple[str, str, _OfSteps], ...] = (
    (names.WORKER_STEPS_SECONDS_TOTAL, "Time in steps", lambda s: s.step_s),
    (
        names.WORKER_OPERATIONS_TOTAL,
        "Operations that steps had to compute, estimated from the model's shape",
        lambda s: s.operations,
    ),
    (
        names.WORKER_READ_BYTES_TOTAL,
        "Bytes of weights and KV that steps had to read, estimated",
        lambda s: s.read_bytes,
    ),
)
_STEP_SHARES: tuple[tuple[str, str, _OfSteps, _OfSteps], ...] = (
    (
        names.WORKER_PEAK_OPERATIONS,
        "What the worker multiplies at best, in operations a second",
        lambda s: s.peak_operations_per_s,
        lambda s: s.peak_operations_per_s,
    ),
    (
        names.WORKER_PEAK_READ_BYTES,
        "What the worker reads at best, in bytes a second",
        lambda s: s.peak_read_bytes_per_s,
        lambda s: s.peak_read_bytes_per_s,
    ),
    (
        names.WORKER_MFU,
        "Share of the peak operations while steps ran, of late",
        lambda s: s.mfu,
        lambda s: s.peak_operations_per_s,
    ),
    (
        names.WORKER_MBU,
        "Share of the peak bandwidth while steps ran, of late",
        lambda s: s.mbu,
        lambda s: s.peak_read_bytes_per_s,
    ),
)


class WorkerCollector(Collector):
    """Turns load reports into samples at the moment of the scrape: no worker that is gone shows.

    Totals are the worker's own: they begin again with its next incarnation, as counters may.
    """

    def __init__(self, loads: Loads) -> None:
        self._loads = loads

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        loads = [((m.worker_id, m.role.value), load) for m, load in self._loads()]
        yield _by_label(
            GaugeMetricFamily(names.WORKER_KV_BLOCKS, "KV blocks by state", labels=_LABELS_STATE),
            loads,
            lambda load: load.kv_blocks,
        )
        yield _gauge(names.WORKER_RUNNING, "Sequences running", loads, lambda r: r.num_running)
        yield _gauge(names.WORKER_WAITING, "Sequences waiting", loads, lambda r: r.num_waiting)
        yield _gauge(
            names.WORKER_KV_UNFILLED_SLOTS,
            "Token slots allocated and not filled, imports apart",
            loads,
            lambda r: r.kv_unfilled_slots,
        )
        yield _gauge(
            names.WORKER_LAST_STEP_AGE_SECONDS,
            "Age of the last step while work is pending",
            loads,
            lambda r: r.last_step_age_s,
        )
        yield _counter(
            names.WORKER_PREEMPTIONS_TOTAL,
            "Preempted sequences",
            loads,
            lambda r: r.num_preemptions,
        )
        yield _gauge(
            names.WORKER_PINNED_BLOCKS,
            "Pinned KV blocks, cached or held",
            loads,
            lambda r: r.num_pinned_blocks,
        )
        yield _counter(
            names.WORKER_PINS_DROPPED_TOTAL,
            "Pinned KV blocks that were evicted before their time",
            loads,
            lambda r: r.num_pins_dropped,
        )
        yield from _steps(loads)
        yield from _transfers(loads)
        yield _histogram(
            names.CANCEL_TO_FREE_SECONDS,
            "A cancel's arrival at the worker to the last of its blocks free",
            loads,
            lambda r: r.cancel_to_free_s,
        )


def _steps(loads: _Labelled) -> Iterator[Metric]:
    """Of workers that know a peak; peaks and shares where they know that peak."""
    metered = [(labels, load.steps) for labels, load in loads if load.steps is not None]
    for name, text, value in _STEP_TOTALS:
        counter = CounterMetricFamily(name, text, labels=_LABELS)
        for labels, steps in metered:
            counter.add_metric(labels, value(steps))
        yield counter
    for name, text, value, peak in _STEP_SHARES:
        gauge = GaugeMetricFamily(name, text, labels=_LABELS)
        for labels, steps in metered:
            if peak(steps):
                gauge.add_metric(labels, value(steps))
        yield gauge


def _transfers(loads: _Labelled) -> Iterator[Metric]:
    yield _counter(
        names.TRANSFER_BYTES_TOTAL,
        "KV sent by prefill workers; received, or sent to others, by decode workers",
        loads,
        lambda r: r.kv_transfer_bytes,
    )
    yield _histogram(
        names.TRANSFER_SECONDS,
        "Pull opened to last block",
        loads,
        lambda r: r.kv_transfer_s,
    )
    yield _by_label(
        CounterMetricFamily(
            names.TRANSFER_FAILURES_TOTAL,
            "Failed KV transfers as this end saw them, by reason",
            labels=_LABELS_REASON,
        ),
        loads,
        lambda r: r.kv_transfer_failures,
    )


def _by_label(
    family: GaugeMetricFamily | CounterMetricFamily,
    loads: _Labelled,
    values: Callable[[LoadReport], dict[str, int]],
) -> Metric:
    """One sample for each key of `values`; keys come from closed sets."""
    for labels, load in loads:
        for key, value in sorted(values(load).items()):
            family.add_metric((*labels, key), value)
    return family


def _gauge(name: str, text: str, loads: _Labelled, value: Callable[[LoadReport], float]) -> Metric:
    return _by_worker(GaugeMetricFamily(name, text, labels=_LABELS), loads, value)


def _counter(
    name: str, text: str, loads: _Labelled, value: Callable[[LoadReport], float]
) -> Metric:
    return _by_worker(CounterMetricFamily(name, text, labels=_LABELS), loads, value)


def _by_worker(
    family: GaugeMetricFamily | CounterMetricFamily,
    loads: _Labelled,
    value: Callable[[LoadReport], float],
) -> Metric:
    for labels, load in loads:
        family.add_metric(labels, value(load))
    return family


def _histogram(
    name: str, text: str, loads: _Labelled, value: Callable[[LoadReport], Histogram]
) -> Metric:
    """Workers that keep no such histogram have no samples of it."""
    family = HistogramMetricFamily(name, text, labels=_LABELS)
    for labels, load in loads:
        histogram = value(load)
        if histogram.counts:
            bounds = [*map(floatToGoString, histogram.bounds_s), "+Inf"]
            below = list(zip(bounds, accumulate(histogram.counts), strict=True))
            family.add_metric(labels, below, histogram.sum_s)
    return family
