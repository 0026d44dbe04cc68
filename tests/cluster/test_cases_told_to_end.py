"""Workers that get SIGTERM in the middle of handoffs: they drain, and they end in time."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes_case_process import case_process, shared_state
from fakes_cases import CaseHouse, ask, case_house, check_same, post, settings, some_tokens
from fakes_process import Child
from fakes_raw_session import attempt, raw_session

from core import metric_names as names
from core.handoff import Handoff, Started
from core.request import AttemptDone, Phase, TokenEvent
from state.store import Member

PROMPT = some_tokens(150, seed=1)
WORKER = "by-hand"
GRACE = ("worker.drain_timeout_s=0.5", "cluster.stop_timeout_s=12")
"""A clean stop takes far less; one that is overdue ends with another status."""
ENDING_S = 60.0
"""Far above the grace, and far below every other deadline of these tests."""


@pytest.fixture
def draining(
    model: Path, redis_url: str, request: pytest.FixtureRequest
) -> Iterator[tuple[CaseHouse, Child]]:
    """A house whose only P is a process with these faults."""
    shared = shared_state(redis_url)
    with (
        case_process(Phase.PREFILL, WORKER, model, [*shared, f"faults.spec={request.param}"]) as p,
        case_house(settings(model, *shared), prefill=0) as house,
    ):
        house.run(house.router.until_connected(2))
        yield house, p


async def member(house: CaseHouse) -> Member:
    return next(m for m in await house.store.members() if m.worker_id == WORKER)


def is_member(house: CaseHouse) -> bool:
    return any(v.worker_id == WORKER and not v.draining for v in house.router.server.fleet.views())


@pytest.mark.parametrize("draining", ["kv_send:delay=4:once"], indirect=True)
def test_a_prefill_worker_that_is_told_to_end_finishes_the_pull_under_way(
    draining: tuple[CaseHouse, Child],
) -> None:
    """Case 12. Its first message is still to be sent when the signal comes."""
    house, p = draining

    async def test() -> None:
        async with house.asking(PROMPT, max_tokens=9) as asking:
            await house.until(lambda: asking.done() or house.blocks("decode-0", "importing") > 0)
            assert not asking.done(), "it was over before the signal"
            p.process.send_signal(signal.SIGTERM)
            answer = await asking
        assert await asyncio.to_thread(p.end, ENDING_S) == 0
        await house.check_whole()
        assert await house.metric(names.RETRIES_TOTAL) == 0
        assert house.d.transferred.num_transfers == 1
        await house.add_worker(house.config, Phase.PREFILL, "prefill-1")
        check_same(answer, await house.ask(PROMPT, max_tokens=9, cache_salt="alone"))

    house.run(test())


@pytest.mark.parametrize("draining", [""], indirect=True)
def test_what_a_prefill_worker_promised_before_it_drains_can_be_fetched(
    draining: tuple[CaseHouse, Child],
) -> None:
    """Case 12. It has left the cluster, and lives until the last handoff is acknowledged."""
    house, p = draining

    async def test() -> None:
        async with raw_session(await member(house)) as of_p, raw_session(house.d.member) as of_d:
            await of_p.prefill(attempt("promised", PROMPT))
            started = await of_p.take(Started)
            await of_p.take(AttemptDone)
            p.process.send_signal(signal.SIGTERM)
            await house.until(lambda: not is_member(house))
            assert p.process.poll() is None
            assert started.handoff is not None
            await of_d.decode(attempt("promised", PROMPT), started.handoff)
            await of_d.take(TokenEvent)
            await of_d.take(AttemptDone)
            assert await asyncio.to_thread(p.end, ENDING_S) == 0
        await house.check_whole()

    house.run(test())


@pytest.fixture
def waiting(model: Path, redis_url: str) -> Iterator[tuple[CaseHouse, Child]]:
    """A house whose only D is a process that would wait for its peers for ever."""
    shared = (*shared_state(redis_url), "kv_transfer.timeout_s=100000")
    brief = "router.no_worker_timeout_s=0.5"
    with (
        case_process(Phase.DECODE, WORKER, model, [*shared, *GRACE]) as d,
        case_house(settings(model, *shared, brief), decode=0) as house,
    ):
        house.run(house.router.until_connected(2))
        yield house, d


def test_a_decode_worker_that_waits_for_blocks_ends_within_the_grace(
    waiting: tuple[CaseHouse, Child],
) -> None:
    """Case 13. P computes for ever; its blocks are free as soon as D is gone."""
    house, d = waiting

    async def test() -> None:
        house.p.steps.hold(after=1)
        asking = asyncio.create_task(post(house.router, some_tokens(1000), max_tokens=9))
        await house.until(lambda: house.blocks(WORKER, "importing") > 0)
        d.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(d.end, ENDING_S) == 0
        house.p.steps.release()
        assert (await asking).status_code == 503
        await house.check_whole()
        await house.add_worker(house.config, Phase.DECODE, "decode-1")
        await ask(house.router, PROMPT, max_tokens=3)

    house.run(test())


def test_a_decode_worker_that_waits_for_a_link_ends_within_the_grace(
    waiting: tuple[CaseHouse, Child],
) -> None:
    """Case 13. The peer accepts the connection and never says a word."""
    house, d = waiting

    async def test(port: int) -> None:
        of_d, of_p = await member(house), house.p.member
        mute = Handoff(
            transfer_id="mute",
            worker_id="mute",
            epoch="mute",
            address=f"127.0.0.1:{port}",
            compat_key=of_p.compat_key,
            num_tokens=len(PROMPT),
            first_block=0,
            num_blocks=-(-len(PROMPT) // 16),
            lease_s=1e6,
        )
        async with raw_session(of_d) as session:
            await session.decode(attempt("mute", PROMPT), mute)
            await house.until(lambda: house.blocks(WORKER, "importing") > 0)
            d.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(d.end, ENDING_S) == 0

    with contextlib.closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        house.run(test(listener.getsockname()[1]))
