"""A prefill worker that is stopped, not dead, while the decode worker waits for its blocks.

P is a process of its own, which can be stopped, and finds the house by its Redis.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import httpx
import pytest
from fakes_byte_model import write_byte_model
from fakes_cases import (
    CaseHouse,
    Json,
    case_house,
    check_same,
    events_of,
    post,
    settings,
    some_tokens,
)
from fakes_process import Child, child, tandem
from fakes_real_house import Front

from core import metric_names as names
from core.config import Config
from core.request import Phase

STOPPED = "prefill-by-hand"
NUM_TOKENS = 5000
QUICK = ("worker.heartbeat_s=1", "worker.stuck_after_s=4")
"""A silent worker is soon taken for lost; after its pulls have failed, and not for a mere pause."""
SMALL_CHUNK = 8
"""P takes 625 steps for the prompt, and pauses among them."""
PAUSES = "step:delay=0.1:every=20"
"""Three seconds for a prompt, so that P can be stopped midway however slowly D reports."""


@dataclass(frozen=True)
class Peer:
    """The house, and the process that is its only P."""

    house: CaseHouse
    config: Config
    process: Child

    @contextlib.asynccontextmanager
    async def stopped_midway(
        self, prompt: list[int], front: Front, *, stream: bool = False
    ) -> AsyncIterator[asyncio.Task[httpx.Response]]:
        """A request whose P is stopped while D imports; at the end P goes on and is well."""
        house, pid = self.house, self.process.process.pid
        asking = asyncio.create_task(post(front, prompt, max_tokens=9, stream=stream))
        await house.until(lambda: asking.done() or house.blocks("decode-0", "importing") > 0)
        assert not asking.done(), f"it ended before P was stopped: {asking.result().text}"
        os.kill(pid, signal.SIGSTOP)
        try:
            yield asking
        finally:
            os.kill(pid, signal.SIGCONT)
            asking.cancel()
            await asyncio.wait({asking})
        await house.until(self.is_well)

    def is_well(self) -> bool:
        """P may be given work, and has none."""
        views = self.house.router.server.fleet.views()
        return self.house.held(STOPPED) == 0 and any(v.worker_id == STOPPED for v in views)

    async def decode_pool_is_whole(self) -> None:
        """By D's own books, whatever P does."""
        await self.house.until(lambda: self.house.held("decode-0") == 0)
        books = await self.house.d.audit()
        assert books.consistent and not books.holders, books


@pytest.fixture(scope="module")
def peer(redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peer]:
    model = write_byte_model(tmp_path_factory.mktemp("byte-model"))
    shared = [
        "state.backend=redis",
        f"state.redis_url={redis_url}",
        f"state.namespace={uuid.uuid4().hex}",
        "kv_transfer.timeout_s=2",
        "router.no_worker_timeout_s=0.5",
        *QUICK,
    ]
    config = settings(model, *shared)
    by_hand = [
        *shared,
        "model.dtype=float32",
        f"scheduler.prefill_chunk_tokens={SMALL_CHUNK}",
        "cache.num_blocks=1024",
        f"faults.spec={PAUSES}",
    ]
    command = tandem("prefill-worker", str(model), "--id", STOPPED)
    command += [word for setting in by_hand for word in ("--set", setting)]
    with child(command) as process, case_house(config, prefill=0) as house:
        made = Peer(house, config, process)
        house.run(house.until(made.is_well))
        yield made


def test_a_request_given_up_while_its_worker_is_stopped_frees_the_blocks_at_once(
    peer: Peer,
) -> None:
    """Case 1. The client leaves; P reports nothing, then too late."""
    house, prompt = peer.house, some_tokens(NUM_TOKENS, seed=1)

    async def test() -> None:
        async with peer.stopped_midway(prompt, house.router) as asking:
            asking.cancel()
            await peer.decode_pool_is_whole()
        answer = await house.ask(prompt, max_tokens=9)
        check_same(answer, await house.ask(prompt, max_tokens=9, cache_salt="alone"))
        await peer.decode_pool_is_whole()

    house.run(test())


@pytest.mark.parametrize("stream", [False, True])
def test_blocks_are_reclaimed_by_the_deadline_and_the_request_fails_once(
    peer: Peer, stream: bool
) -> None:
    """Case 1. There is no other P: one error instead of a status of 200; D's pool is whole."""
    house, prompt = peer.house, some_tokens(NUM_TOKENS, seed=2 + stream)

    async def timeouts() -> float:
        return await house.metric(names.KV_HANDOFF_FAILURES_TOTAL, reason="timeout")

    async def test() -> None:
        before = await timeouts()
        async with peer.stopped_midway(prompt, house.router, stream=stream) as asking:
            await peer.decode_pool_is_whole()
            response = await asking
            assert response.status_code == 503
            assert response.json()["error"]["code"] == "no_worker"
            assert response.text.count("error") == 2, "one error, and its type"
            assert await timeouts() == before + 1
        await peer.decode_pool_is_whole()

    house.run(test())


def test_another_worker_takes_over_and_what_the_first_says_later_changes_nothing(
    peer: Peer,
) -> None:
    """Case 1. A second P joins while the first is stopped; its answer is the only one."""
    house, prompt = peer.house, some_tokens(NUM_TOKENS, seed=5)
    patient = house.add_front(*QUICK, "router.no_worker_timeout_s=120")

    async def test() -> None:
        await patient.until_connected(2)
        async with peer.stopped_midway(prompt, patient, stream=True) as asking:
            await peer.decode_pool_is_whole()
            assert not asking.done()
            second = await house.add_worker(peer.config, Phase.PREFILL, "prefill-1")
            response = await asking
        assert response.status_code == 200
        events = events_of(response)
        reasons = [c["finish_reason"] for event in events for c in event["choices"]]
        assert [reason for reason in reasons if reason] == ["length"]
        alone = await house.ask(prompt, max_tokens=9, cache_salt="alone")
        check_same(joined(events), alone)
        await house.check_whole()
        await house.stop(second)

    house.run(test())


def joined(events: list[Json]) -> Json:
    """A streamed answer of one choice as a whole one."""
    parts = [choice for event in events for choice in event["choices"]]
    keys = ("tokens", "top_logprobs")
    logprobs = {key: [item for part in parts for item in part["logprobs"][key]] for key in keys}
    return {"choices": [{"finish_reason": parts[-1]["finish_reason"], "logprobs": logprobs}]}
