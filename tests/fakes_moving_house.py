"""Requests that move between decode workers, and what their answers must be, to the bit."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from fakes_asks import GREEDY, MIXED, PENALISED, WARM
from fakes_cases import CaseHouse, some_tokens
from fakes_golden import Answer, Ask
from fakes_observed_worker import ObservedWorker

from core import metric_names as names
from core.load import LoadReport
from core.request import Phase, SamplingParams

NUM_TOKENS = 250
"""Of each answer: so many that all run at once before the first one ends."""


def _ask(name: str, sampling: SamplingParams, *, length: int, seed: int, n: int = 1) -> Ask:
    chosen = replace(sampling, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=3)
    return Ask(name, tuple(some_tokens(length, seed)), chosen, n)


ASKS = (
    _ask("greedy", GREEDY, length=70, seed=1),
    _ask("warm", WARM, length=33, seed=2),
    _ask("warm with penalties", PENALISED, length=128, seed=3),
    _ask("greedy, two choices", GREEDY, n=2, length=15, seed=4),
    _ask("warm, three choices", WARM, n=3, length=65, seed=5),
    _ask("mixed, three choices", MIXED, n=3, length=16, seed=6),
)
NUM_CHOICES = sum(each.n for each in ASKS)

_numbers = itertools.count(1)


async def new_decode_worker(house: CaseHouse) -> ObservedWorker:
    """Another decode worker, which the router has met."""
    worker = await house.add_worker(house.config, Phase.DECODE, f"decode-{next(_numbers)}")
    await house.until(lambda: house.blocks(worker.member.worker_id, "free") > 0)
    return worker


async def complete(
    house: CaseHouse,
    salt: str,
    asks: Sequence[Ask] = ASKS,
    on_delta: Callable[[Ask], None] = lambda _: None,
) -> list[Answer]:
    """All of them at once; nothing is found cached that another salt has left."""
    answers = [house.router.complete(x, salt, on_delta=partial(on_delta, x)) for x in asks]
    return list(await asyncio.gather(*answers))


async def begin(house: CaseHouse, salt: str, worker: ObservedWorker) -> asyncio.Task[list[Answer]]:
    """All answers under way, and the only decode worker held with its first step of any."""
    begun: set[str] = set()
    all_begun = asyncio.Event()

    def note(asked: Ask) -> None:
        begun.add(asked.name)
        if len(begun) == len(ASKS):
            all_begun.set()

    worker.posted.clear()
    worker.steps.hold()
    asking = asyncio.create_task(complete(house, salt, on_delta=note))
    await all_begun.wait()  # first tokens come from elsewhere
    return asking


async def step_until(worker: ObservedWorker, condition: Callable[[LoadReport], bool]) -> None:
    """The worker, which is held, goes on step by step until its load is so; then it is held."""
    await worker.steps.until_held()
    while not condition(worker.parts.step_loop.load()):
        worker.steps.hold(after=1)
        await worker.steps.until_held()


def all_run(load: LoadReport) -> bool:
    """Every choice has its KV there, and is in steps."""
    return load.num_running == NUM_CHOICES and not load.kv_blocks["importing"]


def check_same(answers: Sequence[Answer], expected: Sequence[Answer]) -> None:
    """Tokens, log-probabilities, ends and usage of ASKS, to the bit."""
    for got, right, asked in zip(answers, expected, ASKS, strict=True):
        assert got.choices == right.choices, asked.name
        assert got.usage is not None and right.usage is not None
        assert got.usage.prompt_tokens == right.usage.prompt_tokens
        assert got.usage.completion_tokens == right.usage.completion_tokens == NUM_TOKENS * asked.n
        assert got.usage.cached_tokens == right.usage.cached_tokens == 0


def running(house: CaseHouse, worker_id: str) -> int:
    """Choices that have their KV there and are in steps, by the worker's last report."""
    loads = {member.worker_id: load for member, load in house.router.server.fleet.loads()}
    load = loads.get(worker_id)
    return 0 if load is None or load.kv_blocks["importing"] else load.num_running


async def moved(house: CaseHouse, outcome: str) -> float:
    return await house.metric(names.SEQUENCES_MOVED_TOTAL, outcome=outcome)


def computed(*workers: ObservedWorker) -> int:
    """Tokens that these workers have computed."""
    return sum(sum(worker.steps.num_tokens) for worker in workers)
