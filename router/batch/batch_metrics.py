"""Metrics of batches: what this router has done of them, and what is kept for all of them.

What is kept is the same on every router that shares the records: take the largest, not the sum.
"""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge

from core import metric_names as names
from router.batch.line_answer import LINE_STATES, LineResult
from state.batches import FINAL, OPEN, Totals


class BatchMetrics:
    """Adds its metrics to a router's registry; all their labels are there from the beginning."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lines = Counter(
            names.BATCH_LINES_TOTAL,
            "Requests of batches, by what became of them",
            ("state",),
            registry=registry,
        )
        self._running = Gauge(
            names.BATCH_LINES_RUNNING, "Requests of batches in the house", registry=registry
        )
        self._open = Gauge(
            names.BATCHES_OPEN,
            "Batches that have not ended, of all routers, by status",
            ("status",),
            registry=registry,
        )
        self._ended = Counter(
            names.BATCHES_ENDED_TOTAL, "Batches ended, by status", ("status",), registry=registry
        )
        self._files = Gauge(names.FILES, "Files kept, of all routers", registry=registry)
        self._bytes = Gauge(names.FILE_BYTES, "Their bytes", registry=registry)
        for state in LINE_STATES:
            self._lines.labels(state)
        for status in sorted(FINAL):
            self._ended.labels(status)
        self.counted(Totals(0, 0, {}))

    def watch(self, num_running: Callable[[], int]) -> None:
        """Asked at every scrape."""
        self._running.set_function(num_running)

    def noted(self, line: LineResult) -> None:
        """This router has written down what became of a line."""
        self._lines.labels(line.state).inc()

    def ended(self, status: str) -> None:
        """A batch has come to its end here."""
        self._ended.labels(status).inc()

    def counted(self, totals: Totals) -> None:
        """What is kept now."""
        for status in sorted(OPEN):
            self._open.labels(status).set(totals.num_open.get(status, 0))
        self._files.set(totals.num_files)
        self._bytes.set(totals.num_file_bytes)
