"""What is read from a server's metrics page: histograms before and after, and KV waste."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, Gauge, Histogram, generate_latest

from bench.exposition import gauge, histogram, since
from bench.handoff import handoff_side
from bench.kv_watch import KvWaste, slots_per_sequence, watch_kv, watched
from bench.record import RequestRecord
from core.metric_names import KV_HANDOFF_SECONDS, WORKER_KV_UNFILLED_SLOTS, WORKER_RUNNING


class Page:
    """A real exposition page with one histogram of two workers and the gauges of their KV."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.gap = Histogram(
            KV_HANDOFF_SECONDS, "gap", ["worker"], buckets=(1, 2, 4), registry=self._registry
        )
        self.unfilled = Gauge(WORKER_KV_UNFILLED_SLOTS, "slots", ["w"], registry=self._registry)
        self.running = Gauge(WORKER_RUNNING, "running", ["w"], registry=self._registry)

    def text(self) -> str:
        return generate_latest(self._registry).decode()


def test_a_histogram_is_summed_over_its_labels_and_differs_between_pages() -> None:
    page = Page()
    page.gap.labels("a").observe(0.5)
    before = histogram(page.text(), KV_HANDOFF_SECONDS)
    for worker, value in (("a", 1.5), ("a", 1.5), ("b", 3.0), ("b", 3.5)):
        page.gap.labels(worker).observe(value)
    seen = since(before, histogram(page.text(), KV_HANDOFF_SECONDS))
    assert (seen.count, seen.sum, seen.mean) == (4, 9.5, 9.5 / 4)
    assert seen.buckets == ((1, 0), (2, 2), (4, 4), (float("inf"), 4))
    assert seen.quantile(0.5) == 2.0
    assert seen.quantile(0.25) == 1.5
    assert seen.quantile(0.75) == 3.0


def test_samples_above_the_last_bound_are_reported_as_that_bound() -> None:
    page = Page()
    page.gap.labels("a").observe(100)
    assert histogram(page.text(), KV_HANDOFF_SECONDS).quantile(0.5) == 4


def test_what_is_not_on_a_page_is_empty() -> None:
    assert histogram("", KV_HANDOFF_SECONDS).count == 0
    assert gauge("# HELP x y\n", "x") == {}


def test_waste_is_counted_per_running_sequence_of_each_busy_worker() -> None:
    page = Page()
    for worker, slots, running in (("a", 24, 3), ("b", 0, 0), ("c", 15, 1)):
        page.unfilled.labels(worker).set(slots)
        page.running.labels(worker).set(running)
    assert slots_per_sequence(page.text()) == [8.0, 15.0]


def test_waste_is_watched_for_as_long_as_the_work_lasts() -> None:
    async def run() -> tuple[str, KvWaste]:
        page, sampled = Page(), asyncio.Event()
        page.running.labels("a").set(2)
        page.unfilled.labels("a").set(30)

        async def read() -> str:
            sampled.set()
            return page.text()

        async def work() -> str:
            await sampled.wait()
            return "done"

        result, waste = await watched(work(), {"server": read})
        return result, waste["server"]

    result, waste = asyncio.run(run())
    assert result == "done"
    assert waste == KvWaste(num_samples=1, max_slots_per_sequence=15.0)


def test_work_that_fails_ends_the_watch_with_its_own_error() -> None:
    async def run() -> None:
        async def read() -> str:
            return ""

        async def work() -> None:
            raise ValueError("broken")

        await watched(work(), {"server": read})

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(run())


def test_watching_samples_again_and_again_and_keeps_the_worst() -> None:
    async def run() -> KvWaste:
        page, over = Page(), asyncio.Event()
        page.running.labels("a").set(1)
        slots = [3, 9, 6]

        async def read() -> str:
            page.unfilled.labels("a").set(slots.pop(0))
            if not slots:
                over.set()
            return page.text()

        return await watch_kv(read, over, period_s=0.0)

    assert asyncio.run(run()) == KvWaste(num_samples=3, max_slots_per_sequence=9.0)


def test_a_handoffs_side_holds_what_client_workers_and_metrics_saw() -> None:
    page = Page()
    before = page.text()
    page.gap.labels("a").observe(1.5)
    records = [
        RequestRecord(
            index=index,
            started_s=0.0,
            finished_s=2.0,
            chunk_times_s=(1.0, 1.5, 2.0),
            num_output_tokens=3,
            timings={"handoff_s": 0.25 * (1 + index)},
        )
        for index in range(3)
    ]
    side = handoff_side("on", records, before, page.text())
    assert side.client_gap_s is not None and side.client_gap_s.p50 == 0.5
    assert side.ttft_s is not None and side.ttft_s.p50 == 1.0
    assert side.reported_s["handoff_s"].p50 == 0.5
    assert side.histograms_s[KV_HANDOFF_SECONDS].count == 1
    assert list(side.histograms_s) == [KV_HANDOFF_SECONDS]
