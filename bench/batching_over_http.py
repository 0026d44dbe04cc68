"""Both ways of batching on a running server, by when requests are sent to it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from bench.batching import BatchingReport, Strategy, compare_batching
from bench.client import OpenAIClient, ServerError, Target, prepare, with_model
from bench.progress import Progress
from bench.record import RequestRecord
from bench.runner import Timer, run_closed, run_groups
from bench.workload import WorkItem


async def batching_on_server(
    target: Target,
    items: Sequence[WorkItem],
    timer: Timer,
    *,
    concurrency: int,
    repeats: int,
    progress: Progress,
) -> BatchingReport:
    """Compares both strategies on one server. Raises ServerError if it fails a request."""
    target = await with_model(target, timer)
    with closing(OpenAIClient(target, timer)) as client:
        run = HttpBatching(client, timer, concurrency=concurrency)
        await run("continuous", items[:concurrency])  # warm-up
        return await compare_batching(
            run,
            items,
            concurrency=concurrency,
            repeats=repeats,
            name=target.model,
            progress=progress,
        )


class HttpBatching:
    """Runs items on one server; a `bench.batching.RunBatches`."""

    def __init__(self, client: OpenAIClient, timer: Timer, *, concurrency: int) -> None:
        assert client.target.ignore_eos, "batching is compared at given output lengths"
        self._client = client
        self._timer = timer
        self._concurrency = concurrency
        self._num_runs = 0

    async def __call__(self, strategy: Strategy, items: Sequence[WorkItem]) -> float:
        # Prompts differ from run to run, so that no run finds the former one's in a prefix cache.
        seed = f"batching/{self._num_runs}"
        self._num_runs += 1
        requests = [prepare(item, self._client.target, seed) for item in items]
        send, size, timer = self._client.send, self._concurrency, self._timer
        if strategy == "static":
            records = await run_groups(requests, send, group_size=size, timer=timer)
        else:
            records = await run_closed(requests, send, concurrency=size, timer=timer)
        _check_complete(items, records)
        return max(r.finished_s for r in records) - min(r.started_s for r in records)


def _check_complete(items: Sequence[WorkItem], records: Sequence[RequestRecord]) -> None:
    """Raises ServerError unless every request got all the tokens it asked for."""
    for item, record in zip(items, records, strict=True):
        if record.error is not None:
            raise ServerError(f"request {record.index} failed: {record.error}")
        if record.num_output_tokens != item.output_len:
            raise ServerError(
                f"request {record.index} got {record.num_output_tokens} of {item.output_len} "
                "tokens: the server does not honour ignore_eos"
            )
