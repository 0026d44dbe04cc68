"""What the router makes of the store: members come, drain and go, and the store may hang."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from fakes_house import MODEL, House, Texts, house
from fakes_pull import DEADLINE_S
from fakes_worker import FakeWorker

from core.load import LoadReport
from core.request import Phase
from state.memory import MemoryStore
from state.store import Member

PROMPT = list(range(100, 140))


class PausableStore(MemoryStore):
    """A store that, like a paused Redis, neither answers nor refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.paused = False
        self.asked_while_paused = asyncio.Event()

    async def members(self) -> tuple[Member, ...]:
        if self.paused:
            self.asked_while_paused.set()
            await asyncio.get_running_loop().create_future()
        return await super().members()


def in_house(texts: Texts, test: Callable[[House], Awaitable[None]], **settings: Any) -> None:
    async def run() -> None:
        async with house(texts, **settings) as h:
            await test(h)

    asyncio.run(run())


async def ask(h: House) -> int:
    body = {"model": MODEL, "prompt": PROMPT, "max_tokens": 4}
    return (await h.http.post("/v1/completions", json=body)).status_code


def test_a_paused_store_stops_nobody(texts: Texts) -> None:
    async def run() -> None:
        store = PausableStore()
        overrides: dict[str, dict[str, object]] = {"state": {"timeout_s": 0.05}}
        async with house(texts, store=store, overrides=overrides) as h:
            store.paused = True
            async with asyncio.timeout(DEADLINE_S):
                await store.asked_while_paused.wait()
            assert await ask(h) == 200
            assert await ask(h) == 200
            store.paused = False
            # It follows the store again: what is announced now is met.
            late = FakeWorker(Phase.DECODE, h.kv, worker_id="late")
            await h.store.announce(await late.start(), ttl_s=3600)
            await h.until_connected(3)
            await late.die()

    asyncio.run(run())


def test_a_draining_worker_gets_nothing_new_and_loses_nothing(texts: Texts) -> None:
    async def test(h: House) -> None:
        for worker in h.decode:
            worker.gate.clear()
        asking = asyncio.create_task(ask(h))
        await h.until(lambda: any(w.attempts for w in h.decode))
        busy, other = sorted(h.decode, key=lambda w: not w.attempts)
        other.gate.set()
        await h.store.withdraw(busy.worker_id, busy.epoch)
        await h.until_connected(3)
        for _ in range(4):
            assert await ask(h) == 200
        assert (len(busy.attempts), len(other.attempts)) == (1, 4)
        busy.gate.set()
        assert await asking == 200
        assert not busy.cancels

    in_house(texts, test, prefill=2, decode=2)


def test_a_worker_that_reports_draining_gets_nothing_new(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.d.report(LoadReport(draining=True, kv_blocks={"free": 10_000}))
        await h.until(lambda: any(load.draining for _, load in h.router.fleet.loads()))
        for _ in range(3):
            assert await ask(h) == 200
        assert not h.d.attempts and len(h.decode[1].attempts) == 3

    in_house(texts, test, decode=2)


def test_when_all_drain_the_reason_is_said(texts: Texts) -> None:
    async def test(h: House) -> None:
        await h.store.announce(replace(h.d.member, draining=True), ttl_s=3600)
        await h.until(lambda: h.router.fleet.readiness() is not None)
        no_pair = h.router.fleet.readiness()
        assert no_pair is not None and no_pair.reason == "draining"
        assert await ask(h) == 503

    in_house(texts, test, overrides={"router": {"no_worker_timeout_s": 0.1}})


def test_a_worker_of_another_epoch_than_announced_is_not_used(texts: Texts) -> None:
    async def test(h: House) -> None:
        await h.d.die()
        await h.until_connected(1)
        await h.d.start()
        assert await ask(h) == 503, "the store still names the old incarnation"
        await h.store.announce(h.d.member, ttl_s=3600)
        await h.until_connected(2)
        assert await ask(h) == 200

    in_house(texts, test, overrides={"router": {"no_worker_timeout_s": 0.3}})


def test_only_workers_with_equal_compat_keys_are_paired(texts: Texts) -> None:
    async def test(h: House) -> None:
        for worker in (h.prefill[0], h.decode[1]):
            await worker.die()
            worker.compat_key = "other weights"
            await h.restart(worker)
        for _ in range(6):
            assert await ask(h) == 200
        for worker, partner in ((h.decode[0], h.prefill[1]), (h.decode[1], h.prefill[0])):
            sent = {a.transfer_id for a in worker.attempts}
            assert sent == {a.transfer_id for a in partner.attempts}

    in_house(texts, test, prefill=2, decode=2)


def test_an_emptied_store_ends_no_running_request(texts: Texts) -> None:
    async def test(h: House) -> None:
        h.d.gate.clear()
        asking = asyncio.create_task(ask(h))
        await h.d.until(lambda w: len(w.attempts) == 1)
        for worker in (h.p, h.d):
            await h.store.withdraw(worker.worker_id, worker.epoch)
        await h.until_connected(0)
        h.d.gate.set()
        assert await asking == 200

    in_house(texts, test)


def test_while_there_is_no_pair_a_new_worker_is_met_before_the_next_period(texts: Texts) -> None:
    async def test(h: House) -> None:
        late = FakeWorker(Phase.DECODE, h.kv, worker_id="late")
        await h.store.announce(await late.start(), ttl_s=3600)
        await h.until_connected(2)
        assert await ask(h) == 200
        await late.die()

    overrides = {"worker": {"heartbeat_s": 2 * DEADLINE_S}}
    in_house(texts, test, decode=0, overrides=overrides)
