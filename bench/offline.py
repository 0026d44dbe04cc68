"""Measurements of the engine in this process, without a server between.

The engine is imported when a measurement starts: whoever loads a server needs no torch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from bench.batching import BatchingReport, Strategy, compare_batching, groups
from bench.progress import Progress
from bench.prompts import TokenRange, prompt_token_ids
from bench.throughput import OfflineRun, ThroughputReport, throughput_report
from bench.workload import WorkItem
from core.clock import Clock, MonotonicClock
from core.config import Config, load_config
from core.request import Attempt, SamplingParams

if TYPE_CHECKING:
    from decode_worker.offline import OfflineEngine


def offline_config(
    model: str, settings: Mapping[str, str], *, max_num_seqs: int | None = None
) -> Config:
    """The configuration with a model's name (empty: the configured one) and settings on top.

    Raises ConfigError.
    """
    overrides = [f"{name}={value}" for name, value in settings.items()]
    if model:
        overrides.append(f"model.model={model}")
    if max_num_seqs is not None:
        overrides.append(f"scheduler.max_num_seqs={max_num_seqs}")
    return load_config(overrides=overrides)


def throughput_offline(
    config: Config, items: Sequence[WorkItem], *, repeats: int, progress: Progress
) -> ThroughputReport:
    """Runs all items at once, `repeats` times with fresh prompts. Raises TandemError."""
    runner = OfflineRunner(load_engine(config, progress), MonotonicClock())
    runner.run(items[:1])  # warm-up
    runs: list[OfflineRun] = []
    for repeat in range(repeats):
        progress(f"run {repeat + 1} of {repeats}")
        runs.append(runner.run(items))
    return throughput_report(runner.model, len(items), runs)


def batching_offline(
    config: Config,
    items: Sequence[WorkItem],
    *,
    concurrency: int,
    repeats: int,
    progress: Progress,
) -> BatchingReport:
    """Compares both ways of batching; the engine runs at most `max_num_seqs` at once."""
    runner = OfflineRunner(load_engine(config, progress), MonotonicClock())
    runner.run(items[:1])  # warm-up

    async def run(strategy: Strategy, wanted: Sequence[WorkItem]) -> float:
        batches = [wanted] if strategy == "continuous" else groups(wanted, concurrency)
        return sum(runner.run(batch).duration_s for batch in batches)

    return asyncio.run(
        compare_batching(
            run,
            items,
            concurrency=concurrency,
            repeats=repeats,
            name=f"{runner.model}, offline",
            progress=progress,
        )
    )


def load_engine(config: Config, progress: Progress) -> OfflineEngine:
    """Fetches, loads and warms up the configured model. Raises ConfigError."""
    from decode_worker.offline import OfflineEngine

    return OfflineEngine.load(config, progress)


class OfflineRunner:
    """Runs items on an engine; no two runs share a prompt, so no prefix is found cached."""

    def __init__(self, engine: OfflineEngine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._num_runs = 0

    @property
    def model(self) -> str:
        return self._engine.engine.card.name

    def run(self, items: Sequence[WorkItem]) -> OfflineRun:
        """All items at once, to their full output lengths. Raises TandemError if one fails."""
        tokens = TokenRange().within(self._engine.engine.card.vocab_size)
        name = f"offline/{self._num_runs}"
        self._num_runs += 1
        attempts = [attempt(item, name, tokens) for item in items]
        started_s = self._clock.now()
        outputs = self._engine.generate(attempts)
        return OfflineRun(
            num_prompt_tokens=sum(a.num_prompt_tokens for a in attempts),
            num_output_tokens=sum(len(events) for events in outputs.values()),
            duration_s=self._clock.now() - started_s,
        )


def attempt(item: WorkItem, run: str, tokens: TokenRange) -> Attempt:
    """The item as a worker is given it: greedy, past the end of text."""
    token_ids = prompt_token_ids(item, run, tokens)
    return Attempt(
        request_id=f"{run}/{item.index}",
        transfer_id=f"{run}/{item.index}",
        model="",
        token_ids=tuple(token_ids),
        num_prompt_tokens=len(token_ids),
        choices=(0,),
        sampling=SamplingParams(max_tokens=item.output_len, temperature=0.0, ignore_eos=True),
        deadline_s=float("inf"),
    )
