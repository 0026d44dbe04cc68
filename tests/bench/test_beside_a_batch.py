"""`tandem bench batch`, small: against scripted servers."""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fakes_openai_server import FakeOpenAIServer
from rich.console import Console

from bench.beside.batches import BatchView
from bench.beside.lines import LineCounts, LineShape, count_lines, custom_ids, input_file
from bench.beside.report import BesidePlan, BesideReport
from bench.beside.run import BesideBench, mean_length, rate_for
from bench.beside.tables import batch_table, online_table
from bench.client import OpenAIClient, ServerError, Target
from bench.lengths import LengthRange
from bench.prompts import TokenRange
from bench.report import read_json, write_json

SHAPE = LineShape(40, LengthRange(3, 9), LengthRange(2, 2))
PLAN = BesidePlan(
    lines=SHAPE,
    inputs=LengthRange(4, 16),
    outputs=LengthRange(3, 3),
    slice_s=2.0,
    num_pairs=3,
    chunk_tokens=16,
    num_probes=2,
)
CHUNK_S = 0.5


class JumpingTimer:
    """Is at once where somebody wants to wait for."""

    def __init__(self) -> None:
        self._time_s = 0.0

    def now(self) -> float:
        return self._time_s

    async def until(self, at_s: float) -> None:
        await asyncio.sleep(0)  # what is due by now begins
        self._time_s = max(self._time_s, at_s)


@dataclass
class ScriptedBatches:
    """Each look finds one more line answered; a batch ends when it was looked at so often."""

    ends_after: int = 20
    begun: list[bytes] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    num_looks: dict[str, int] = field(default_factory=dict)

    async def begin(self, data: bytes) -> BatchView:
        self.begun.append(data)
        return BatchView(str(len(self.begun) - 1), "validating")

    async def look(self, batch_id: str) -> BatchView:
        seen = self.num_looks[batch_id] = self.num_looks.get(batch_id, 0) + 1
        if batch_id in self.cancelled:
            return BatchView(batch_id, "cancelled", seen)
        if seen < self.ends_after:
            return BatchView(batch_id, "in_progress", seen)
        return BatchView(batch_id, "completed", SHAPE.num_lines, batch_id)

    async def cancel(self, batch_id: str) -> None:
        self.cancelled.append(batch_id)

    async def results(self, file_id: str | None) -> list[dict[str, Any]]:
        return [answer(name) for name in custom_ids(SHAPE)] if file_id else []


def answer(name: str, status: int = 200) -> dict[str, Any]:
    return {"custom_id": name, "error": None, "response": {"status_code": status, "body": {}}}


async def measured(
    server: FakeOpenAIServer, batches: ScriptedBatches, plan: BesidePlan = PLAN
) -> BesideReport:
    timer = JumpingTimer()
    client = OpenAIClient(Target(server.base_url, "fake", include_timings=True), timer)
    with closing(client):
        return await BesideBench(plan, client, batches, timer, lambda _: None).measure({})


def test_both_slices_of_a_pair_get_the_same_arrivals_with_other_tokens(tmp_path: Path) -> None:
    async def run() -> tuple[FakeOpenAIServer, ScriptedBatches, BesideReport]:
        batches = ScriptedBatches()
        async with FakeOpenAIServer(timings={"prefill_s": CHUNK_S}) as server:
            return server, batches, await measured(server, batches)

    server, batches, report = asyncio.run(run())
    assert report.without.num_requests == report.beside.num_requests > PLAN.num_pairs
    assert report.to_the_end.num_requests > 0
    assert len(batches.begun) == PLAN.num_pairs + 1 == len(set(batches.begun))
    assert batches.cancelled == ["0", "1", "2"], "the last one was left to end"
    assert report.num_lines_in_slices == sum(batches.num_looks[each] for each in batches.cancelled)
    assert report.chunk_s.p50 == CHUNK_S
    assert report.rate_rps == rate_for(PLAN, CHUNK_S)
    assert report.beside.computing_s is not None and report.beside.computing_s.max == CHUNK_S
    assert report.is_whole and report.status == "completed"
    prompts = [request["prompt"] for request in server.requests]
    assert all(isinstance(prompt, list) for prompt in prompts)
    assert len({str(prompt) for prompt in prompts}) == len(prompts), "no prefix is cached"
    probes = [p for p in prompts if isinstance(p, list) and len(p) == PLAN.chunk_tokens]
    assert len(probes) >= PLAN.num_probes * (1 + 2 * PLAN.num_pairs)
    write_json(tmp_path / "report.json", report)
    assert read_json(tmp_path / "report.json", BesideReport) == report
    assert show(report).count("until it had ended") == 1


def test_a_slice_that_outlasts_its_batch_is_no_measurement() -> None:
    async def run() -> None:
        async with FakeOpenAIServer(timings={"prefill_s": CHUNK_S}) as server:
            await measured(server, ScriptedBatches(ends_after=2))

    with pytest.raises(ServerError, match="give it more lines"):
        asyncio.run(run())


def test_a_server_that_tells_no_durations_can_not_be_measured() -> None:
    async def run() -> None:
        async with FakeOpenAIServer() as server:
            await measured(server, ScriptedBatches())

    with pytest.raises(ServerError, match="no timings"):
        asyncio.run(run())


def test_a_batch_that_never_ends_is_cancelled_and_told_of() -> None:
    async def run() -> tuple[ScriptedBatches, BesideReport]:
        batches = ScriptedBatches(ends_after=10**9)
        plan = replace(PLAN, num_pairs=0, batch_timeout_s=2.0)
        async with FakeOpenAIServer(timings={"prefill_s": CHUNK_S}) as server:
            return batches, await measured(server, batches, plan)

    batches, report = asyncio.run(run())
    assert batches.cancelled == ["0"]
    assert report.status == "in_progress" and not report.is_whole
    assert report.counts.num_missing == SHAPE.num_lines
    assert not report.is_within_a_chunk, "nothing was compared"
    assert "NO" in show(report)


@pytest.mark.parametrize(
    ("output", "errors", "expected"),
    [
        (["a", "b"], [], LineCounts(2, 2, 0, 0, 0)),
        (["a"], ["b"], LineCounts(2, 1, 1, 0, 0)),
        (["a"], [], LineCounts(2, 1, 0, 1, 0)),
        (["a", "b", "a"], [], LineCounts(2, 2, 0, 0, 1)),
        (["a", "b"], ["b"], LineCounts(2, 2, 1, 0, 1)),
        (["a", "b", "c"], [], LineCounts(2, 2, 0, 0, 1)),
    ],
)
def test_lines_are_complete_if_each_was_answered_once(
    output: list[str], errors: list[str], expected: LineCounts
) -> None:
    found = count_lines(["a", "b"], list(map(answer, output)), list(map(answer, errors)))
    assert found == expected
    assert found.is_complete == (expected == LineCounts(2, 2, 0, 0, 0))


def test_an_input_file_is_the_seeds_and_its_lines_are_as_long_as_asked() -> None:
    data = input_file(SHAPE, "m", TokenRange(), "seed")
    assert (
        data
        == input_file(SHAPE, "m", TokenRange(), "seed")
        != input_file(SHAPE, "m", TokenRange(), "other")
    )
    lines = [json.loads(line) for line in data.splitlines()]
    assert [line["custom_id"] for line in lines] == custom_ids(SHAPE)
    assert {len(line["body"]["prompt"]) for line in lines} <= set(range(3, 10))
    assert {line["body"]["model"] for line in lines} == {"m"}


def test_the_mean_of_log_uniform_lengths() -> None:
    assert mean_length(LengthRange(7, 7)) == 7
    assert mean_length(LengthRange(128, 1024)) == pytest.approx(430.9, abs=0.1)


def show(report: BesideReport) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(online_table(report))
        console.print(batch_table(report))
    return captured.get()
