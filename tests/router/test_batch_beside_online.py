"""A batch beside online requests, as `tandem bench batch` runs it, through a real router.

How long anything takes is for the benchmark to say: here every line has to be answered once.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import pytest
from fakes_house import Texts, house

from bench.beside.batches import HttpBatches
from bench.beside.lines import LineCounts, LineShape, count_lines, custom_ids, input_file
from bench.beside.report import BesidePlan, BesideReport
from bench.beside.run import BesideBench
from bench.client import OpenAIClient, ServerError, Target, with_model
from bench.lengths import LengthRange
from bench.prompts import TokenRange
from bench.runner import LoopTimer
from core.clock import MonotonicClock

SHAPE = LineShape(120, LengthRange(3, 9), LengthRange(2, 2))
PLAN = BesidePlan(
    lines=SHAPE,
    inputs=LengthRange(4, 16),
    outputs=LengthRange(3, 3),
    num_pairs=0,
    rate_rps=20.0,
    chunk_tokens=16,
    num_probes=2,
)


@asynccontextmanager
async def client_of(base_url: str) -> AsyncIterator[OpenAIClient]:
    timer = MonotonicClock()
    target = Target(base_url, ignore_eos=True, include_timings=True)
    with closing(OpenAIClient(await with_model(target, timer), timer)) as client:
        yield client


def test_a_batch_ends_beside_online_requests_with_every_line_answered_once(texts: Texts) -> None:
    async def run() -> BesideReport:
        async with (
            house(texts) as h,
            client_of(f"http://127.0.0.1:{h.ports.http}") as client,
        ):
            timer = LoopTimer(MonotonicClock())
            bench = BesideBench(PLAN, client, HttpBatches(client), timer, lambda _: None)
            report = await bench.measure({})
            num_batch = sum(attempt.in_background for attempt in h.d.attempts)
            assert num_batch == SHAPE.num_lines, "nothing ran twice"
            return report

    report = asyncio.run(run())
    assert report.is_whole, (report.status, report.counts, report.to_the_end.errors)
    assert report.counts == LineCounts(120, 120, 0, 0, 0)
    assert report.to_the_end.num_requests > 0


def test_a_batch_is_cancelled_between_slices(texts: Texts) -> None:
    async def run() -> None:
        async with (
            house(texts) as h,
            client_of(f"http://127.0.0.1:{h.ports.http}") as client,
        ):
            h.d.gate.clear()
            batches = HttpBatches(client)
            data = input_file(SHAPE, client.target.model, TokenRange(), "0")
            begun = await batches.begin(data)
            await h.d.until(lambda d: bool(d.attempts))
            await batches.cancel(begun.batch_id)
            while not (seen := await batches.look(begun.batch_id)).is_over:
                pass
            assert seen.status == "cancelled"
            errors = await batches.results(seen.error_file_id)
            found = count_lines(custom_ids(SHAPE), await batches.results(None), errors)
            assert found == LineCounts(120, 0, 120, 0, 0)
            with pytest.raises(ServerError, match="404"):
                await batches.look("batch_" + "0" * 28)

    asyncio.run(run())
