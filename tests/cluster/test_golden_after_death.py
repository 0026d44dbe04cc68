"""Workers are killed in the middle of answers; the clients get the same tokens, each once.

One prefill and one decode worker, which die, are processes of their own; one of each that lives on,
and the router, are here. They meet on one Redis.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest
from fakes_asks import golden_asks, long_asks, mirrored
from fakes_golden import Answer, Ask, check
from fakes_real_house import Front, RealHouse, real_house, settings, until_whole
from fakes_solo import Solo
from fakes_worker_process import WorkerProcess, worker_processes

from core.config import StateConfig
from core.request import Attempt, Phase
from router.fleet.leg_event import Sink
from router.fleet.sessions import WorkerSession
from state.store import Member
from text.tokenizer import Tokenizer

STUCK = "step:delay=100000:after=20:worker=decode-0"
"""In fewer steps than an answer has tokens."""
STUCK_FOR_S = 1.0


@dataclass(frozen=True)
class Processes:
    """The house, and the workers that can be killed."""

    house: RealHouse
    front: Front
    workers: dict[str, WorkerProcess]
    survivors: list[Member]

    def check_whole(self) -> None:
        """Every worker that was not killed lives, and holds no block."""
        for worker in self.workers.values():
            if not worker.killed:
                assert worker.child.process.poll() is None, worker.child.output
                self.house.loop.run(until_whole(worker.address))
        for member in self.survivors:
            self.house.loop.run(until_whole(member.address))


@pytest.fixture(scope="module")
def processes(redis_url: str) -> Iterator[Processes]:
    state = StateConfig(backend="redis", redis_url=redis_url, namespace=uuid.uuid4().hex)
    roles = [Phase.PREFILL, Phase.DECODE]
    with real_house() as house, worker_processes(state, roles, STUCK) as workers:
        store = house.shared_store(state)
        survivors = [house.worker(settings(), role, store, number=1) for role in roles]
        front = house.front(settings(), store)
        house.loop.run(front.until_connected(len(workers) + len(survivors)))
        yield Processes(house, front, workers, survivors)


async def complete(front: Front, asks: Sequence[Ask]) -> list[Answer]:
    return list(await asyncio.gather(*(front.complete(ask) for ask in asks)))


async def until_stuck(front: Front, worker_id: str) -> None:
    """Until the worker says that it has been in one step for long."""
    fleet, changed = front.server.fleet, asyncio.Event()
    fleet.watch(changed.set)
    while _step_age_s(front, worker_id) < STUCK_FOR_S:
        changed.clear()
        await changed.wait()
    fleet.unwatch(changed.set)


def _step_age_s(front: Front, worker_id: str) -> float:
    loads = front.server.fleet.loads()
    return max((x.last_step_age_s for m, x in loads if m.worker_id == worker_id), default=0.0)


def check_all(asks: Sequence[Ask], answers: Sequence[Answer], solo: Solo) -> None:
    for ask, answer in zip(asks, answers, strict=True):
        check(ask, solo.answer(ask), answer, solo.next_logits)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == len(ask.token_ids)
        emitted = sum(len(choice.token_ids) for choice in answer.choices)
        assert answer.usage.completion_tokens == emitted, "none twice, none missing"
    assert any(answer.num_attempts > 1 for answer in answers), "it served nobody when it died"


def test_a_decode_worker_killed_mid_stream_costs_no_token(
    processes: Processes, solo: Solo, tokenizer: Tokenizer
) -> None:
    """It gets stuck before its first answer is complete, so that it dies among them all."""
    asks, victim = mirrored(golden_asks(tokenizer)), processes.workers["decode-0"]

    async def test() -> list[Answer]:
        asking = asyncio.create_task(complete(processes.front, asks))
        await until_stuck(processes.front, "decode-0")
        await asyncio.to_thread(victim.kill)
        return await asking

    check_all(asks, processes.house.loop.run(test()), solo)
    processes.check_whole()


def test_a_prefill_worker_killed_among_prompts_costs_no_token(
    processes: Processes, solo: Solo, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its second prompt, which it can't have computed."""
    asks, victim = long_asks(tokenizer, 8), processes.workers["prefill-0"]
    prefill, sent = WorkerSession.prefill, list[Attempt]()

    def send_and_kill(session: WorkerSession, attempt: Attempt, sink: Sink) -> None:
        prefill(session, attempt, sink)
        if session.member.worker_id == "prefill-0":
            sent.append(attempt)
            if len(sent) == 2:
                victim.child.process.kill()

    monkeypatch.setattr(WorkerSession, "prefill", send_and_kill)
    answers = processes.house.loop.run(complete(processes.front, asks))
    victim.kill()
    check_all(asks, answers, solo)
    processes.check_whole()
