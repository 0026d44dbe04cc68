"""Streams that are running when a long prompt comes: what it does to their gaps.

all streams run |-- quiet --| prompt sent ..... its second token | its answer ended, streams cut off
                 quiet gaps   gaps that overlap this

A prompt has arrived when its second token is there: where two workers share the work, its KV has
travelled by then and its sequence has been in a step with the others. From then on it is one more
running stream, whose context makes every step dearer, whoever serves it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass

from bench.chunk import carries_output
from bench.client import PreparedRequest, prepare
from bench.http_response import ProtocolError
from bench.peers.client import PeerClient
from bench.peers.closed_loop import UnfairError
from bench.peers.lengths_check import length_problem
from bench.peers.workloads import Arrival
from bench.record import RequestRecord
from bench.runner import Timer
from bench.stats import median, percentile
from bench.workload import Segment, WorkItem

_POLL_S = 0.01
_START_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time."""

    begin_s: float
    end_s: float


async def measure_arrival(
    workload: Arrival, client: PeerClient, timer: Timer, seed: str
) -> dict[str, float]:
    """Runs the streams and sends the prompt once. Raises UnfairError."""
    seed = f"{seed}/{workload.name}"
    streams = [_Stream() for _ in range(workload.num_streams)]
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(stream.run(client, _stream_request(workload, index, client, seed)))
            for index, stream in enumerate(streams)
        ]
        try:
            await _all_run(streams, timer)
            quiet_s = timer.now()
            await timer.until(quiet_s + workload.quiet_s)
            record = await client.send(_arriving_request(workload, client, seed))
            ended = [stream.problem for stream in streams if stream.ended]
        finally:
            for task in tasks:
                task.cancel()
    problem = length_problem([record], {0: (workload.prompt_len, workload.answer_len)})
    if problem is not None or ended:
        raise UnfairError(problem or f"a stream ended too early: {ended[0]}")
    figures = arrival_figures(
        [stream.times_s for stream in streams],
        quiet=Window(quiet_s, record.started_s),
        disturbed=Window(record.started_s, arrived_s(record)),
    )
    return {**figures, "prompt_ttft_ms": record.ttft_s * 1000}


def arrived_s(record: RequestRecord) -> float:
    """When its second piece of text was there, by the load generator's clock; or all it got."""
    times = record.chunk_times_s
    return times[1] if len(times) > 1 else record.finished_s


def arrival_figures(
    streams: Sequence[Sequence[float]], *, quiet: Window, disturbed: Window
) -> dict[str, float]:
    """Sums up the times of the streams' chunks, in seconds; `disturbed` begins where `quiet` ends.

    A stream's own median is that of its quiet gaps, so that a disturbance does not hide itself.
    Raises UnfairError if a stream has no quiet gap.
    """
    quiet_gaps = [_gaps_within(times_s, quiet) for times_s in streams]
    if not all(quiet_gaps):
        raise UnfairError("a stream made no two tokens in the quiet time")
    gaps = [_gaps_overlapping(times_s, disturbed) for times_s in streams]
    medians = [median(stream) for stream in quiet_gaps]
    worst = [max(stream) for stream in gaps]
    quiet_p99, p99 = _p99(quiet_gaps), _p99(gaps)
    return {
        "median_gap_ms": median(medians) * 1000,
        "worst_gap_ms": max(worst) * 1000,
        "worst_gap_over_own_median": max(w / m for w, m in zip(worst, medians, strict=True)),
        "quiet_p99_ms": quiet_p99 * 1000,
        "p99_ms": p99 * 1000,
        "p99_over_quiet_p99": p99 / quiet_p99,
    }


def _gaps_within(times_s: Sequence[float], window: Window) -> list[float]:
    pairs = zip(times_s, times_s[1:], strict=False)
    return [b - a for a, b in pairs if window.begin_s <= a and b <= window.end_s]


def _gaps_overlapping(times_s: Sequence[float], window: Window) -> list[float]:
    """Also the one that the stream's last chunk opens, as far as it lies in the window."""
    pairs = zip(times_s, times_s[1:], strict=False)
    gaps = [b - a for a, b in pairs if b > window.begin_s and a < window.end_s]
    if times_s[-1] < window.end_s:
        gaps.append(window.end_s - times_s[-1])
    return gaps


def _p99(streams: Sequence[Sequence[float]]) -> float:
    return percentile(sorted(gap for stream in streams for gap in stream), 99)


class _Stream:
    """The times of one stream's output."""

    def __init__(self) -> None:
        self.times_s: list[float] = []
        self.ended = False
        self.problem = "all its tokens were made"

    async def run(self, client: PeerClient, request: PreparedRequest) -> None:
        try:
            await client.follow(request, self._add)
        except (OSError, ProtocolError) as error:
            self.problem = str(error) or type(error).__name__
        self.ended = True

    def _add(self, now_s: float, payload: bytes) -> None:
        if payload != b"[DONE]" and carries_output(json.loads(payload)):
            self.times_s.append(now_s)


async def _all_run(streams: Sequence[_Stream], timer: Timer) -> None:
    """Returns once each has a gap behind it. Raises UnfairError."""
    deadline_s = timer.now() + _START_TIMEOUT_S
    while any(len(stream.times_s) < 2 for stream in streams):
        if timer.now() > deadline_s or any(stream.ended for stream in streams):
            raise UnfairError("the streams did not all begin")
        await timer.until(timer.now() + _POLL_S)


def _stream_request(
    workload: Arrival, index: int, client: PeerClient, seed: str
) -> PreparedRequest:
    segment = Segment(f"stream/{index}", workload.stream_input_len)
    return prepare(WorkItem(index, (segment,), workload.stream_output_len), client.target, seed)


def _arriving_request(workload: Arrival, client: PeerClient, seed: str) -> PreparedRequest:
    segment = Segment("arrival", workload.prompt_len)
    return prepare(WorkItem(0, (segment,), workload.answer_len), client.target, seed)
