"""Decode workers that drain: the router has what runs there taken over by others, KV and all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from fakes_house import MODEL, House, Texts, house
from fakes_language import FakeLanguage
from fakes_worker import FakeWorker
from openai.types import Completion

from core import metric_names as names
from core.request import AttemptFailed
from router.life.request_life import RequestLife

PROMPT = list(range(100, 140))
LENGTH = 10
DRAINING = AttemptFailed("", "draining", "this worker is draining", True)
PULL_FAILED = AttemptFailed("", "transfer_failed", "the peer is gone", True, "peer_lost")


def in_house(texts: Texts, test: Callable[[House], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with house(texts, **settings) as h:
            await test(h)

    asyncio.run(run())


async def ask(h: House, **fields: Any) -> Completion:
    request = {"model": MODEL, "prompt": PROMPT, "max_tokens": LENGTH, "seed": 1}
    return await h.openai.post("/completions", body=request | fields, cast_to=Completion)


def expected(texts: Texts, choice: int = 0) -> str:
    return texts.tokenizer.decode(FakeLanguage().answer(PROMPT, 1, choice, LENGTH))


def check(answer: Completion, texts: Texts) -> None:
    for choice in answer.choices:
        assert choice.text == expected(texts, choice.index)
        assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == LENGTH * len(answer.choices)


def has_an_offer(h: House) -> bool:
    """Whether the router has heard of KV that it may have pulled."""
    lives = [life for life in h.router.door._lives if isinstance(life, RequestLife)]
    return any(run.offered for life in lives for run in life._runs.values())


async def begun(h: House, **fields: Any) -> tuple[asyncio.Task[Completion], FakeWorker]:
    """A request whose first token is there, and the D that is held before its next one."""
    for worker in h.decode:
        worker.gate.clear()
    asking = asyncio.create_task(ask(h, **fields))
    await h.p.until(lambda w: len(w.ended) == 1)
    for worker in h.decode:
        if not worker.attempts:
            continue
        return asking, worker
    first = await _first_of(h)
    return asking, first


async def _first_of(h: House) -> FakeWorker:
    waits = {asyncio.create_task(w.until(lambda w: bool(w.attempts))): w for w in h.decode}
    done, pending = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in pending:
        wait.cancel()
    return waits[done.pop()]


def drain(worker: FakeWorker) -> None:
    worker.report(replace(worker.load, draining=True))


def go_on(h: House) -> None:
    for worker in h.decode:
        worker.gate.set()


def others(h: House, worker: FakeWorker) -> list[FakeWorker]:
    return [w for w in h.decode if w is not worker]


async def moved(h: House, outcome: str) -> float:
    name = f'{names.SEQUENCES_MOVED_TOTAL}{{outcome="{outcome}"}} '
    lines = (await h.http.get("/metrics")).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(name))


@pytest.mark.parametrize("n", [1, 3])
def test_a_drained_worker_is_asked_to_let_go_and_its_kv_is_pulled(texts: Texts, n: int) -> None:
    async def test(h: House) -> None:
        asking, victim = await begun(h, n=n)
        drain(victim)
        await victim.until(lambda w: len(w.moves) == 1)
        go_on(h)
        check(await asking, texts)
        assert len(h.p.attempts) == 1, "nothing was computed anew"
        (heir,) = others(h, victim)
        assert sorted(a.choices for a in heir.attempts) == [(c,) for c in range(n)]
        for attempt, handoff in zip(heir.attempts, heir.handoffs, strict=True):
            emitted = FakeLanguage().answer(PROMPT, 1, attempt.choices[0], attempt.num_emitted)
            assert list(attempt.token_ids) == PROMPT + emitted
            assert handoff is not None and handoff.worker_id == victim.worker_id
            assert handoff.num_tokens == len(attempt.token_ids)
        assert await moved(h, "pulled") == n
        assert not h.kv.open and not victim.cancels and not heir.cancels

    in_house(texts, test, decode=2)


def test_first_tokens_may_come_after_the_kv_has_moved(texts: Texts) -> None:
    """P's stream is slower than D's: until then nobody knows what was emitted."""

    async def test(h: House) -> None:
        h.p.tokens_leave.clear()
        asking, victim = await begun(h)
        drain(victim)
        await victim.until(lambda w: len(w.moves) == 1)
        go_on(h)
        await victim.until(lambda w: len(w.ended) == 1)
        h.p.tokens_leave.set()
        check(await asking, texts)
        assert len(h.p.attempts) == 1
        assert await moved(h, "pulled") == 1

    in_house(texts, test, decode=2)


def test_what_has_no_kv_goes_on_elsewhere_and_counts_as_no_failure(texts: Texts) -> None:
    async def test(h: House) -> None:
        asking, victim = await begun(h, n=2)
        victim.keeps_no_kv = True
        drain(victim)
        await victim.until(lambda w: len(w.moves) == 1)
        go_on(h)
        check(await asking, texts)
        assert await moved(h, "given_back") == 2

    in_house(texts, test, decode=2, overrides={"router": {"max_attempts": 1}})


def test_a_pull_that_fails_is_followed_by_a_computation(texts: Texts) -> None:
    async def test(h: House) -> None:
        asking, victim = await begun(h)
        (heir,) = others(h, victim)
        heir.failures.append(PULL_FAILED)
        drain(victim)
        await victim.until(lambda w: len(w.moves) == 1)
        go_on(h)
        check(await asking, texts)
        assert len(h.p.attempts) == 2
        assert await moved(h, "failed") == 1
        assert not h.kv.open, "the lease was cancelled"

    in_house(texts, test, decode=2)


def test_an_heir_that_drains_as_well_leaves_the_kv_to_another(texts: Texts) -> None:
    async def test(h: House) -> None:
        asking, victim = await begun(h)
        for heir in others(h, victim):
            heir.failures.append(DRAINING)
        others(h, victim)[0].failures.clear()
        drain(victim)
        await victim.until(lambda w: len(w.moves) == 1)
        go_on(h)
        check(await asking, texts)
        assert len(h.p.attempts) == 1

    in_house(texts, test, decode=3, overrides={"router": {"max_attempts": 1}})


def test_a_prompts_kv_goes_to_another_worker_when_the_chosen_one_drains(texts: Texts) -> None:
    async def test(h: House) -> None:
        for worker in h.decode:
            worker.failures.append(DRAINING)
        h.decode[1].failures.clear()
        check(await ask(h), texts)
        check(await ask(h), texts)
        assert len(h.p.attempts) == 2, "one prefill for each"
        assert h.decode[0].attempts, "it was asked"

    in_house(texts, test, decode=2, overrides={"router": {"max_attempts": 1}})


def test_without_another_worker_nobody_is_asked_to_let_go(texts: Texts) -> None:
    async def test(h: House) -> None:
        asking, victim = await begun(h)
        drain(victim)
        await h.until(lambda: any(v.load.draining for v in h.router.fleet.views()))
        go_on(h)
        check(await asking, texts)
        assert not victim.moves

    in_house(texts, test)


def test_kv_of_a_choice_that_a_stop_string_has_ended_is_given_up(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.tokens_leave.clear()
        tokens = FakeLanguage().answer(PROMPT, 1, 0, LENGTH)
        asking, victim = await begun(h, stop=[texts.tokenizer.decode(tokens[:2])])
        drain(victim)
        await victim.until(lambda w: len(w.moves) == 1)
        go_on(h)
        await victim.until(lambda w: len(w.ended) == 1)
        h.p.tokens_leave.set()
        answer = await asking
        assert answer.choices[0].finish_reason == "stop"
        await victim.until(lambda w: not h.kv.open)
        assert not others(h, victim)[0].attempts

    in_house(texts, test, decode=2)


def test_a_client_that_leaves_before_the_kv_is_pulled_leaves_nothing(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.tokens_leave.clear()
        asking, victim = await begun(h)
        drain(victim)
        await victim.until(lambda w: len(w.moves) == 1)
        go_on(h)
        await victim.until(lambda w: len(w.ended) == 1)
        await h.until(lambda: has_an_offer(h))
        asking.cancel()
        offered = f"{victim.moves[0]}+0"
        await victim.until(lambda w: offered in {transfer_id for transfer_id, _ in w.cancels})

    in_house(texts, test, decode=2)
