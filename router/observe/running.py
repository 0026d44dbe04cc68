"""Requests in the house at the moment of a scrape: running, and waiting for a first chunk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from core import metric_names as names
from router.observe.request_record import PRIORITY_CLASSES, RequestRecord

Records: TypeAlias = Callable[[], Iterable[RequestRecord]]


class RunningCollector(Collector):
    """Counts `records`, which are those of the house."""

    def __init__(self, model: str, records: Records) -> None:
        self._model = model
        self._records = records

    def describe(self) -> Iterable[Metric]:
        return ()

    def collect(self) -> Iterator[Metric]:
        found = Counter[tuple[str, str]](
            (record.state, record.priority_class) for record in self._records()
        )
        for name, text, state in (
            (names.REQUESTS_RUNNING, "Requests that a worker has begun to compute", "running"),
            (names.REQUESTS_WAITING, "Requests that no worker has begun to compute", "waiting"),
        ):
            family = GaugeMetricFamily(name, text, labels=("model", "priority_class"))
            for priority_class in PRIORITY_CLASSES:
                family.add_metric((self._model, priority_class), found[(state, priority_class)])
            yield family
