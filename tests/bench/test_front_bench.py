"""`tandem bench router`, small: real routers and synthetic workers, a process each."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bench.client import OpenAIClient, prepare
from bench.front.command import front_table
from bench.front.decisions import decision_s
from bench.front.fronts import NO_ROUTER, TANDEM, VLLM_ROUTER, http_worker, vllm_router_command
from bench.front.run import FrontPlan, measure_front
from bench.peers.places import Places
from bench.workload import Segment, WorkItem
from core.clock import MonotonicClock

PLAN = FrontPlan(
    num_requests=5, num_streams=3, stream_len=12, input_len=20, repeats=2, num_workers=2
)


def test_every_token_of_every_stream_is_counted_and_who_is_missing_is_named(
    tmp_path: Path,
) -> None:
    report = asyncio.run(measure_front(PLAN, [], Places(tmp_path), lambda _: None))
    assert list(report.repeats) == [TANDEM, NO_ROUTER]
    for name, repeats in report.repeats.items():
        assert len(repeats) == 2
        for repeat in repeats:
            assert 0 < repeat.first_token_p50_s <= repeat.first_token_p99_s
            assert repeat.tokens_per_s > 0
            assert (repeat.tokens_per_cpu_s is None) == (name == NO_ROUTER)
    reason = "not installed: tandem bench peers install vllm-router"
    assert report.left_out == {VLLM_ROUTER: reason}
    table = front_table(report)
    assert table.row_count == 6 and reason in str(table.caption)


def test_the_synthetic_server_answers_one_request_after_the_other_and_several_at_once() -> None:
    async def run() -> list[tuple[str | None, int]]:
        async with http_worker() as worker:
            client = OpenAIClient(worker.target, MonotonicClock())
            items = [WorkItem(i, (Segment("any", 3),), length) for i, length in enumerate((1, 3))]
            requests = [prepare(item, worker.target, "seed") for item in items]
            try:
                records = [await client.send(request) for request in requests]
                records += await asyncio.gather(*map(client.send, requests))
            finally:
                client.close()
        return [(record.error, record.num_output_tokens) for record in records]

    assert asyncio.run(run()) == [(None, 1), (None, 3)] * 2


def test_vllms_router_is_told_where_to_listen_and_who_works() -> None:
    line = vllm_router_command(Path("somewhere/vllm-router"), "http://127.0.0.1:1", 2, 3)
    assert line[0] == "somewhere/vllm-router"
    assert line[line.index("--worker-urls") + 1] == "http://127.0.0.1:1"
    assert line[line.index("--port") + 1] == "2"


def test_decisions_are_timed() -> None:
    assert decision_s(2, 64, MonotonicClock(), rounds=3) > 0
