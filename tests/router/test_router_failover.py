"""Workers that die, fail or fall silent: no token is lost, doubled or changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest
from fakes_house import MODEL, House, Texts, house
from fakes_language import FakeLanguage
from fakes_worker import Trap
from openai.types import Completion

from core.request import AttemptFailed

PROMPT = list(range(100, 140))
LENGTH = 10
PULL_FAILED = AttemptFailed("", "transfer_failed", "the peer is gone", True, "peer_lost")
BROKEN = AttemptFailed("", "internal_error", "a bug", False)


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


def test_a_worker_killed_at_any_position_changes_no_token(texts: Texts) -> None:
    trap = Trap()

    async def test(h: House) -> None:
        for position in range(LENGTH):
            trap.position = position
            answer = await ask(h)
            assert answer.choices[0].text == expected(texts), position
            assert answer.usage is not None
            assert answer.usage.completion_tokens == LENGTH
            assert trap.victim is not None and trap.position is None, "somebody died"
            assert trap.victim in (h.prefill if position == 0 else h.decode)
            await h.restart(trap.victim)

    in_house(texts, test, prefill=2, decode=2, trap=trap)


def test_a_stream_goes_on_when_its_decode_worker_dies(texts: Texts) -> None:
    async def test(h: House) -> None:
        stream = await h.openai.completions.create(
            model=MODEL, prompt=PROMPT, max_tokens=LENGTH, seed=1, stream=True
        )
        text = "".join([chunk.choices[0].text async for chunk in stream])
        assert text == expected(texts)
        first, resumed = h.p.attempts
        assert 1 <= resumed.num_emitted <= 4, "what D still had to send is lost with it"
        emitted = FakeLanguage().answer(PROMPT, 1, 0, resumed.num_emitted)
        assert list(resumed.token_ids) == PROMPT + emitted
        assert resumed.num_prompt_tokens == len(PROMPT) == len(first.token_ids)
        assert resumed.transfer_id != first.transfer_id
        assert resumed.request_id == first.request_id

    in_house(texts, test, decode=2, trap=Trap(position=4))


def test_a_combined_worker_that_dies_is_replaced_as_well(texts: Texts) -> None:
    async def test(h: House) -> None:
        answer = await ask(h)
        assert answer.choices[0].text == expected(texts)
        assert not h.prefill, "there are none"
        handoffs = [handoff for worker in h.decode for handoff in worker.handoffs]
        assert handoffs == [None, None]

    settings = {"prefill": 0, "decode": 2, "overrides": {"router": {"mode": "combined"}}}
    in_house(texts, test, trap=Trap(position=3), **settings)


def test_choices_of_a_lost_attempt_go_on_one_by_one(texts: Texts) -> None:
    async def test(h: House) -> None:
        answer = await ask(h, n=3)
        assert [c.text for c in answer.choices] == [expected(texts, i) for i in range(3)]
        shared, *resumed = h.p.attempts
        assert shared.choices == (0, 1, 2)
        assert sorted(a.choices for a in resumed) == [(0,), (1,), (2,)]

    in_house(texts, test, decode=2, trap=Trap(position=5))


def test_choices_that_emitted_nothing_start_again_together(texts: Texts) -> None:
    async def test(h: House) -> None:
        answer = await ask(h, n=3)
        assert [c.text for c in answer.choices] == [expected(texts, i) for i in range(3)]
        attempts = [a for worker in h.prefill for a in worker.attempts]
        assert [a.choices for a in attempts] == [(0, 1, 2), (0, 1, 2)]

    in_house(texts, test, prefill=2, trap=Trap(position=0))


def test_a_failed_pull_means_prefill_again_on_others(texts: Texts) -> None:
    async def test(h: House) -> None:
        for worker in h.decode:
            worker.failures.append(PULL_FAILED)
        answer = await ask(h, max_tokens=1 + LENGTH - 1)
        assert answer.choices[0].text == expected(texts)
        assert [len(w.attempts) for w in h.prefill] in ([1, 2], [2, 1], [1, 1])
        assert all(len(w.attempts) >= 1 for w in h.decode), "the other D was tried"

    in_house(texts, test, prefill=2, decode=2)


def test_with_one_pair_a_failed_pull_is_tried_again_on_it(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.d.failures += [PULL_FAILED, PULL_FAILED]
        assert (await ask(h)).choices[0].text == expected(texts)
        assert len(h.p.attempts) == 3

    in_house(texts, test)


def test_attempts_are_bounded(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.failures += [PULL_FAILED] * 9
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(h)
        assert caught.value.status_code == 503
        assert caught.value.code == "transfer_failed"
        assert len(h.p.attempts) == 3

    in_house(texts, test, overrides={"router": {"max_attempts": 3}})


def test_what_no_retry_can_help_is_not_retried(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.failures.append(BROKEN)
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(h)
        assert caught.value.status_code == 500
        assert len(h.p.attempts) == 1

    in_house(texts, test)


def test_a_prefill_worker_lost_after_the_handoff_changes_nothing(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.d.gate.clear()
        asking = asyncio.create_task(ask(h))
        await h.p.until(lambda w: len(w.ended) == 1)
        await h.d.until(lambda w: len(w.attempts) == 1)
        await h.p.die()
        await h.until_connected(1)
        h.d.gate.set()
        assert (await asking).choices[0].text == expected(texts)
        assert len(h.d.attempts) == 1, "D went on by itself"

    in_house(texts, test)


def test_a_silent_worker_is_lost_although_its_connection_stands(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.silent = True
        assert (await ask(h)).choices[0].text == expected(texts)
        # Its turn comes at the latest with the second request.
        assert (await ask(h)).choices[0].text == expected(texts)
        assert h.p.attempts, "it was asked, and did not answer"

    overrides = {"worker": {"stuck_after_s": 0.3, "heartbeat_s": 0.1}}
    in_house(texts, test, prefill=2, overrides=overrides)


def test_a_dropped_stream_is_opened_again_and_the_request_goes_on(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.p.gate.clear()
        asking = asyncio.create_task(ask(h))
        await h.p.until(lambda w: len(w.attempts) == 1)
        h.p.drop_sessions()
        await h.p.until(lambda w: len(w.attempts) == 2)
        h.p.gate.set()
        assert (await asking).choices[0].text == expected(texts)

    in_house(texts, test)


def test_a_worker_that_restarts_at_its_address_has_forgotten_the_old_epoch(texts: Texts) -> None:
    async def test(h: House) -> None:
        for _ in range(5):
            old = h.d.epoch
            await h.d.die()
            await h.until_connected(1)
            await h.restart(h.d)
            assert h.d.epoch != old
            assert (await ask(h)).choices[0].text == expected(texts)

    in_house(texts, test)
