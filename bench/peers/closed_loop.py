"""Figures of a closed loop against one server."""

from __future__ import annotations

from bench.load_test import send_load
from bench.peers.client import PeerClient
from bench.peers.lengths_check import length_problem
from bench.peers.workloads import ClosedLoop
from bench.report import point_report
from bench.runner import Timer
from core.errors import TandemError


class UnfairError(TandemError):
    """A server did not do what it was asked to, so that its figures cannot be compared."""

    code = "unfair_measurement"


async def measure_closed_loop(
    workload: ClosedLoop, client: PeerClient, timer: Timer, seed: str
) -> dict[str, float]:
    """Sends the workload once. Raises UnfairError if an answer is not as long as asked."""
    plan, load = workload.plan(seed), workload.load
    asked = {item.index: (item.input_len, item.output_len) for item in plan.items(load)}
    records = await send_load(client, plan, load, timer)
    problem = length_problem(records, asked)
    if problem is not None:
        raise UnfairError(problem)
    point = point_report(load, records, slo=None)
    assert point.ttft_s is not None, "every answer was checked to hold output"
    figures = {
        "ttft_ms": point.ttft_s.p50 * 1000,
        "output_tokens_per_s": point.output_tokens_per_s,
    }
    if workload.concurrency == 1:
        figures["prompt_tokens_per_s"] = workload.input_len / point.ttft_s.p50
    if point.tpot_s is not None and point.itl_s is not None:
        figures["tpot_ms"] = point.tpot_s.p50 * 1000
        figures["itl_p99_ms"] = point.itl_s.p99 * 1000
    return figures
