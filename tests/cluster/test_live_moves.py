"""A decode worker drains under load: what runs there goes on elsewhere with its KV, bit for bit.

The victim's steps are held where the test wants them; answers are compared with the same requests
undisturbed, whose KV lies under another salt, so that nothing of it is found cached.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fakes_asks import GREEDY, MIXED, PENALISED, WARM
from fakes_cases import CaseHouse, case_house, settings, some_tokens
from fakes_golden import Answer, Ask
from fakes_loop_thread import DEADLINE_S
from fakes_observed_worker import ObservedWorker

from core import metric_names as names
from core.request import Phase
from engine.role import Move

NUM_TOKENS = 250


def ask(name: str, sampling: object, n: int = 1, length: int = 70, seed: int = 0) -> Ask:
    chosen = replace(sampling, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=3)  # type: ignore[type-var]
    return Ask(name, tuple(some_tokens(length, seed)), chosen, n)


ASKS = [
    ask("greedy", GREEDY, seed=1),
    ask("warm", WARM, length=33, seed=2),
    ask("warm with penalties", PENALISED, length=128, seed=3),
    ask("greedy, two choices", GREEDY, n=2, length=15, seed=4),
    ask("warm, three choices", WARM, n=3, length=65, seed=5),
    ask("mixed, three choices", MIXED, n=3, length=16, seed=6),
]
NUM_CHOICES = sum(each.n for each in ASKS)


@pytest.fixture(scope="module", params=["float", "int8", "fp8"])
def house(model: Path, request: pytest.FixtureRequest) -> Iterator[CaseHouse]:
    kind = {"float": "auto", "int8": "int8", "fp8": "fp8"}[request.param]
    config = settings(model, f"cache.kv_cache_dtype={kind}", "kv_transfer.verify=true")
    with case_house(config) as made:
        yield made


_numbers = itertools.count(1)


async def new_worker(house: CaseHouse) -> ObservedWorker:
    """Another decode worker, which the router has met."""
    worker = await house.add_worker(house.config, Phase.DECODE, f"decode-{next(_numbers)}")
    await house.until(lambda: house.blocks(worker.member.worker_id, "free") > 0)
    return worker


async def complete(house: CaseHouse, asks: Sequence[Ask], salt: str) -> list[Answer]:
    return list(await asyncio.gather(*(house.router.complete(each, salt) for each in asks)))


def same(answers: Sequence[Answer], expected: Sequence[Answer]) -> None:
    """Tokens, log-probabilities, ends and usage, to the bit."""
    for got, right, asked in zip(answers, expected, ASKS, strict=False):
        assert got.choices == right.choices, asked.name
        assert got.usage is not None and right.usage is not None
        assert got.usage.prompt_tokens == right.usage.prompt_tokens
        assert got.usage.completion_tokens == right.usage.completion_tokens == NUM_TOKENS * asked.n
        assert got.usage.cached_tokens == right.usage.cached_tokens == 0


def computed(*workers: ObservedWorker) -> int:
    """Tokens that these workers have computed."""
    return sum(sum(worker.steps.num_tokens) for worker in workers)


def runs(house: CaseHouse, worker: ObservedWorker) -> int:
    """Choices that have their KV there and are in steps, by the worker's last report."""
    loads = dict(house.router.server.fleet.loads())
    load = loads[worker.member]
    return 0 if load.kv_blocks["importing"] else load.num_running


def test_a_drained_worker_hands_everything_over_and_nothing_is_computed_twice(
    house: CaseHouse,
) -> None:
    victim = house.d

    async def test() -> None:
        before = computed(house.p), computed(victim)
        expected = await complete(house, ASKS, "undisturbed")
        undisturbed = computed(house.p) - before[0], computed(victim) - before[1]
        pulled = await house.metric(names.SEQUENCES_MOVED_TOTAL, outcome="pulled")

        before = computed(house.p), computed(victim)
        victim.posted.clear()
        asking = asyncio.create_task(complete(house, ASKS, "moved"))
        await house.until(lambda: runs(house, victim) == NUM_CHOICES)
        victim.steps.hold()
        await victim.steps.until_held()
        heir = await new_worker(house)
        draining = asyncio.create_task(victim.drain(DEADLINE_S))
        await victim.posted.until(Move, len(ASKS))
        victim.steps.release()
        answers = await asking
        assert await draining == 0, "every lease was acknowledged"
        same(answers, expected)
        assert computed(house.p) - before[0] == undisturbed[0], "no prompt was computed again"
        assert computed(victim, heir) - before[1] == undisturbed[1], "and no token"
        await house.stop(victim)
        moved = await house.metric(names.SEQUENCES_MOVED_TOTAL, outcome="pulled") - pulled
        assert moved == NUM_CHOICES
        await house.check_whole()

    house.run(test())
