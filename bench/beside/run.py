"""Measures online requests in slices, in turn with and without a batch beside them.

    chunk alone | without | chunk alone | beside | chunk alone | beside | chunk alone | without ...
    at last: beside one batch, until it has ended

Both slices of a pair have the same arrivals and lengths, with other tokens, so that no prefix is
cached. A slice beside a batch begins when its first line has been answered; after it the batch is
cancelled, and what it had at workers is gone before anything else is sent.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator, Mapping

from bench.beside.batches import Batches, BatchView
from bench.beside.lines import count_lines, custom_ids, input_file
from bench.beside.report import BesidePlan, BesideReport, differences_s, online_report
from bench.client import OpenAIClient, PreparedRequest, ServerError, prepare
from bench.lengths import LengthRange
from bench.progress import Progress
from bench.record import RequestRecord
from bench.runner import Timer, run_closed, run_open
from bench.stats import distribution, median
from bench.workload import Segment, WorkItem, synthetic_items, take, with_arrivals

LOOK_EVERY_S = 0.25
_WARMUP = 8


class BesideBench:
    """One measurement of one server."""

    def __init__(
        self,
        plan: BesidePlan,
        client: OpenAIClient,
        batches: Batches,
        timer: Timer,
        progress: Progress,
    ) -> None:
        self._plan = plan
        self._client = client
        self._batches = batches
        self._timer = timer
        self._progress = progress
        self._chunks_s: list[float] = []
        self._rate_rps = 0.0
        self._num_lines_in_slices = 0

    async def measure(self, settings: Mapping[str, str]) -> BesideReport:
        """Raises ServerError. `settings` are shown with the report."""
        plan = self._plan
        await self._warm_up()
        await self._time_chunks("first")
        self._rate_rps = rate_for(plan, median(self._chunks_s))
        records: dict[bool, list[RequestRecord]] = {False: [], True: []}
        for number in range(plan.num_pairs):
            for beside in (False, True) if number % 2 == 0 else (True, False):
                what = "beside a batch" if beside else "without"
                self._progress(f"pair {number + 1} of {plan.num_pairs}: {what}")
                slice_ = self._beside(number) if beside else self._online(f"{number}", "without")
                records[beside] += await slice_
                await self._time_chunks(f"{number}/{beside}")
        self._progress("beside a batch, until it has ended")
        to_the_end, last, batch_s = await self._to_the_end()
        counts = count_lines(
            custom_ids(plan.lines),
            await self._batches.results(last.output_file_id),
            await self._batches.results(last.error_file_id),
        )
        chunk_s = distribution(self._chunks_s)
        assert chunk_s is not None, "probes come first"
        return BesideReport(
            plan=plan,
            model=self._client.target.model,
            settings=settings,
            rate_rps=self._rate_rps,
            chunk_s=chunk_s,
            without=online_report(records[False]),
            beside=online_report(records[True]),
            to_the_end=online_report(to_the_end),
            difference_s=differences_s(records[False], records[True]),
            num_lines_in_slices=self._num_lines_in_slices,
            status=last.status,
            batch_s=batch_s,
            counts=counts,
        )

    async def _warm_up(self) -> None:
        """Links, pools and kernels are there; also those of a batch."""
        items = take(self._items("warm-up"), num_requests=_WARMUP, duration_s=None)
        requests = [prepare(item, self._client.target, "warm-up") for item in items]
        await run_closed(requests, self._client.send, concurrency=2, timer=self._timer)

    async def _time_chunks(self, name: str) -> None:
        """Prompts of exactly one chunk, one after the other; each leaves the house empty."""
        for number in range(self._plan.num_probes):
            item = WorkItem(number, (Segment(f"probe/{number}", self._plan.chunk_tokens),), 1)
            seed = f"{self._plan.seed}/{name}"
            record = await self._client.send(prepare(item, self._client.target, seed))
            if record.error is not None or "prefill_s" not in record.timings:
                raise ServerError(f"a chunk can't be timed: {record.error or 'no timings'}")
            self._chunks_s.append(record.timings["prefill_s"])

    async def _online(self, name: str, arm: str) -> list[RequestRecord]:
        """One slice's requests."""
        items = take(self._arriving(name), num_requests=None, duration_s=self._plan.slice_s)
        requests = [self._prepared(item, f"{name}/{arm}") for item in items]
        return await run_open(requests, self._client.send, timer=self._timer)

    async def _beside(self, number: int) -> list[RequestRecord]:
        """The same beside a batch that has begun to be answered and outlasts it."""
        batch = await self._begin(f"batch/{number}")
        batch = await self._until(batch, lambda seen: seen.num_completed > 0)
        records = await self._online(f"{number}", "beside")
        batch = await self._batches.look(batch.batch_id)
        if batch.is_over:
            raise ServerError(
                f"a batch was {batch.status} before its slice had ended: give it more lines"
            )
        await self._batches.cancel(batch.batch_id)
        batch = await self._until(batch, lambda seen: False)
        self._num_lines_in_slices += batch.num_completed
        return records

    async def _to_the_end(self) -> tuple[list[RequestRecord], BatchView, float]:
        """Online requests for as long as a batch takes, the batch, and how long it took."""
        began_s = self._timer.now()
        begun = await self._begin("batch/last")
        over = asyncio.Event()

        async def watch() -> tuple[BatchView, float]:
            try:
                last = await self._until(begun, lambda seen: self._is_late(began_s))
                return last, self._timer.now() - began_s
            finally:
                over.set()

        def requests() -> Iterator[PreparedRequest]:
            for item in self._arriving("last"):
                if over.is_set():
                    return
                yield self._prepared(item, "last")

        watching = asyncio.create_task(watch())
        try:
            records = await run_open(requests(), self._client.send, timer=self._timer)
            last, batch_s = await watching
        finally:
            watching.cancel()
        if not last.is_over:
            await self._batches.cancel(last.batch_id)
        return records, last, batch_s

    def _is_late(self, began_s: float) -> bool:
        return self._timer.now() - began_s > self._plan.batch_timeout_s

    async def _begin(self, name: str) -> BatchView:
        target, seed = self._client.target, f"{self._plan.seed}/{name}"
        return await self._batches.begin(
            input_file(self._plan.lines, target.model, target.tokens, seed)
        )

    async def _until(self, batch: BatchView, reached: Callable[[BatchView], bool]) -> BatchView:
        """The batch when it is over, or has come so far."""
        while not (batch.is_over or reached(batch)):
            await self._timer.until(self._timer.now() + LOOK_EVERY_S)
            batch = await self._batches.look(batch.batch_id)
        return batch

    def _items(self, name: str) -> Iterator[WorkItem]:
        return synthetic_items(self._plan.inputs, self._plan.outputs, f"{self._plan.seed}/{name}")

    def _arriving(self, name: str) -> Iterator[WorkItem]:
        return with_arrivals(self._items(name), self._rate_rps, 1.0, f"{self._plan.seed}/{name}")

    def _prepared(self, item: WorkItem, name: str) -> PreparedRequest:
        return prepare(item, self._client.target, f"{self._plan.seed}/{name}")


def rate_for(plan: BesidePlan, chunk_s: float) -> float:
    """The plan's, or requests per second whose prompts take its share of a prefill worker."""
    if plan.rate_rps is not None:
        return plan.rate_rps
    return plan.load * plan.chunk_tokens / (chunk_s * mean_length(plan.inputs))


def mean_length(lengths: LengthRange) -> float:
    """Of log-uniform lengths."""
    if lengths.low == lengths.high:
        return float(lengths.low)
    return (lengths.high - lengths.low) / math.log(lengths.high / lengths.low)
