"""Workers are killed in the middle of answers; the clients get the same tokens, each once.

Two prefill and two decode workers as processes of their own on one Redis, the router here.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import pytest
from fakes_asks import golden_asks, long_asks, mirrored
from fakes_golden import Answer, Ask, check
from fakes_real_house import Front, RealHouse, real_house, settings, until_whole
from fakes_solo import Solo
from fakes_worker_process import WorkerProcess, worker_processes

from core.config import StateConfig
from core.request import Phase
from text.tokenizer import Tokenizer


@dataclass(frozen=True)
class Processes:
    """The house, and the workers that can be killed."""

    house: RealHouse
    front: Front
    workers: dict[str, WorkerProcess]

    def check_whole(self) -> None:
        """Every worker that was not killed lives, and holds no block."""
        for worker in self.workers.values():
            if not worker.killed:
                assert worker.child.process.poll() is None, worker.child.output
                self.house.loop.run(until_whole(worker.address))


@pytest.fixture(scope="module")
def processes(redis_url: str) -> Iterator[Processes]:
    state = StateConfig(backend="redis", redis_url=redis_url, namespace=uuid.uuid4().hex)
    roles = [Phase.PREFILL, Phase.PREFILL, Phase.DECODE, Phase.DECODE]
    with real_house() as house, worker_processes(state, roles) as workers:
        store = house.shared_store(state)
        front = house.front(settings(), store)
        house.loop.run(front.until_connected(len(workers)))
        yield Processes(house, front, workers)


async def complete_killing(
    front: Front, asks: Sequence[Ask], victim: WorkerProcess, *, at: Callable[[list[int]], bool]
) -> list[Answer]:
    """All answers; the victim is killed once `at` says so of how many deltas each ask has had."""
    num_deltas, due = [0] * len(asks), asyncio.Event()

    def count(index: int) -> None:
        num_deltas[index] += 1
        if at(num_deltas):
            due.set()

    async def kill() -> None:
        await due.wait()
        await asyncio.to_thread(victim.kill)

    async with asyncio.TaskGroup() as group:
        group.create_task(kill())
        answers = [
            group.create_task(front.complete(ask, on_delta=partial(count, index)))
            for index, ask in enumerate(asks)
        ]
    return [answer.result() for answer in answers]


def check_all(asks: Sequence[Ask], answers: Sequence[Answer], solo: Solo) -> None:
    for ask, answer in zip(asks, answers, strict=True):
        check(ask, solo.answer(ask), answer, solo.next_logits)


def test_a_decode_worker_killed_mid_stream_costs_no_token(
    processes: Processes, solo: Solo, tokenizer: Tokenizer
) -> None:
    asks, victim = mirrored(golden_asks(tokenizer)), processes.workers["decode-0"]
    work = complete_killing(processes.front, asks, victim, at=lambda seen: min(seen) >= 2)
    answers = processes.house.loop.run(work)
    check_all(asks, answers, solo)
    assert any(answer.num_attempts > 1 for answer in answers), "it served nobody when it died"
    processes.check_whole()


def test_a_prefill_worker_killed_among_prompts_costs_no_token(
    processes: Processes, solo: Solo, tokenizer: Tokenizer
) -> None:
    asks, victim = long_asks(tokenizer, 8), processes.workers["prefill-0"]
    work = complete_killing(processes.front, asks, victim, at=any)
    answers = processes.house.loop.run(work)
    check_all(asks, answers, solo)
    assert any(answer.num_attempts > 1 for answer in answers), "it served nobody when it died"
    processes.check_whole()
