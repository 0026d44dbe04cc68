"""Requests that are refused or given up between P and D: both sides free everything at once.

Leases of these houses never expire by themselves: what isn't given back is held for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fakes_cases import CaseHouse, case_house, check_same, post, settings, some_tokens
from fakes_moving_house import step_until
from fakes_raw_session import attempt, raw_session
from fakes_real_house import describe

from core.handoff import Handoff, Started
from core.load import LoadReport
from core.request import Attempt, AttemptDone, AttemptFailed, Phase, TokenEvent
from engine.role import Cancel, Submit
from router.fleet.leg_event import Sink
from router.fleet.sessions import WorkerSession

BLOCK = 16
PROMPT = some_tokens(100, seed=4)


@pytest.fixture
def house(model: Path) -> Iterator[CaseHouse]:
    with case_house(settings(model)) as made:
        yield made


def test_a_decode_worker_that_cannot_take_a_request_costs_the_prefill_worker_nothing(
    house: CaseHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D rejects it before it was admitted, for good: the client hears so, P frees at once."""
    decode = WorkerSession.decode

    def too_long(
        session: WorkerSession, attempt: Attempt, handoff: Handoff | None, sink: Sink
    ) -> None:
        sampling = replace(attempt.sampling, max_tokens=10**6)
        decode(session, replace(attempt, sampling=sampling), handoff, sink)

    monkeypatch.setattr(WorkerSession, "decode", too_long)

    async def test() -> None:
        response = await post(house.router, PROMPT, max_tokens=9)
        assert response.status_code == 400
        await house.check_whole()

    house.run(test())


def test_a_request_that_meets_a_draining_decode_worker_goes_to_another(
    house: CaseHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D begins to drain just before its leg arrives; P frees the first try's blocks at once."""
    decode = WorkerSession.decode
    met: list[str] = []

    def drained_meanwhile(
        session: WorkerSession, attempt: Attempt, handoff: Handoff | None, sink: Sink
    ) -> None:
        if not met:
            victim = next(w for w in house.workers if w.member == session.member)
            victim.parts.gate.draining = True
        met.append(session.member.worker_id)
        decode(session, attempt, handoff, sink)

    async def test() -> None:
        await house.add_worker(house.config, Phase.DECODE, "decode-1")
        await house.router.until_connected(3)
        monkeypatch.setattr(WorkerSession, "decode", drained_meanwhile)
        answer = await house.ask(PROMPT, max_tokens=9)
        assert len(met) == len(set(met)) == 2
        check_same(answer, await house.ask(PROMPT, max_tokens=9, cache_salt="alone"))
        await house.check_whole()

    house.run(test())


def test_a_request_given_up_while_it_is_queued_after_its_transfer_leaves_nothing(
    house: CaseHouse,
) -> None:
    """Its blocks have all arrived at D, whose step is not over, when its client leaves."""
    steps, posted = house.d.steps, house.d.posted
    bystander_prompt = some_tokens(20, seed=5)

    async def test() -> None:
        steps.hold(after=3)
        async with house.asking(bystander_prompt, max_tokens=300, ignore_eos=True) as bystander:
            await steps.until_held()  # in the middle of the bystander's answer
            before = house.d.transferred.num_transfers
            posted.clear()
            async with house.asking(PROMPT, max_tokens=50):
                await posted.until(Submit)
                steps.hold(after=1)
                while house.d.transferred.num_transfers == before:
                    await describe(house.d.member.address)
            await posted.until(Cancel)
            steps.release()
            answer = await bystander
        await house.check_whole()
        alone = await house.ask(
            bystander_prompt, max_tokens=300, ignore_eos=True, cache_salt="alone"
        )
        check_same(answer, alone)

    house.run(test())


def test_an_id_that_is_used_again_while_its_blocks_are_held_is_refused_and_harms_nothing(
    house: CaseHouse,
) -> None:
    """Once while P computes, once when it is done and holds the lease; then D fetches it."""
    other = some_tokens(50, seed=6)
    steps = house.p.steps

    async def test() -> None:
        member = house.p.member
        async with (
            raw_session(member) as first,
            raw_session(member) as second,
            raw_session(house.d.member) as of_d,
        ):
            steps.hold()
            await first.prefill(attempt("same", PROMPT))
            started = await first.take(Started)
            await second.prefill(attempt("same", other))
            assert (await second.take(AttemptFailed)).code == "duplicate"
            steps.release()
            token = await first.take(TokenEvent)
            await first.take(AttemptDone)
            assert house.p.num_leases == 1
            await second.prefill(attempt("same", other))
            assert (await second.take(AttemptFailed)).code == "cancelled"
            assert house.p.num_leases == 1
            assert started.handoff is not None
            await of_d.decode(attempt("same", PROMPT), started.handoff)
            tokens = [token.token_id] + [(await of_d.take(TokenEvent)).token_id for _ in range(4)]
            await of_d.take(AttemptDone)
            await first.prefill(attempt("another", PROMPT))
            again = await first.take(Started)
            assert again.handoff is not None
            assert (await first.take(TokenEvent)).token_id == tokens[0]
            await of_d.decode(attempt("another", PROMPT), again.handoff)
            assert [(await of_d.take(TokenEvent)).token_id for _ in range(4)] == tokens[1:]
            await of_d.take(AttemptDone)
        await house.check_whole()

    house.run(test())


def test_a_preempted_request_can_be_given_up(model: Path) -> None:
    """It waits for room that another takes; once its client has left, only that one is there."""
    small = settings(
        model,
        "model.max_model_len=512",
        "cache.num_blocks=40",
        "scheduler.admission_growth_tokens=0",
    )
    first, second = some_tokens(2 * BLOCK, seed=7), some_tokens(2 * BLOCK, seed=8)
    fields = {"max_tokens": 450, "ignore_eos": True}

    def both_run(load: LoadReport) -> bool:
        return load.num_running == 2 and not load.kv_blocks["importing"]

    async def test(house: CaseHouse) -> None:
        steps, posted = house.d.steps, house.d.posted
        steps.hold(after=3)
        async with house.asking(first, **fields) as staying:
            await steps.until_held()
            async with house.asking(second, **fields):
                await posted.until(Submit, 2)
                await step_until(house.d, both_run)
                steps.hold(after=200)  # they have room for more
                await step_until(house.d, lambda x: x.num_preemptions > 0 and x.num_waiting == 1)
            await posted.until(Cancel)
            steps.release()
            answer = await staying
        await house.check_whole()
        check_same(answer, await house.ask(first, **fields, cache_salt="alone"))

    with case_house(settings(model, "model.max_model_len=512"), decode_config=small) as house:
        house.run(test(house))
