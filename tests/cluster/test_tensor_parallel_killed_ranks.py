"""A rank is killed in the middle of a transfer: its group ends, the peers lose that pull only."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from fakes_byte_model import write_byte_model
from fakes_cases import settings, some_tokens
from fakes_loop_thread import DEADLINE_S
from fakes_observed_worker import ObservedWorker
from fakes_raw_session import RawSession, attempt, raw_session
from fakes_real_house import until_whole

from cluster.child_ranks import ChildRanks
from cluster.plan import num_ranks
from core.errors import WorkerLostError
from core.handoff import Started
from core.request import Attempt, AttemptDone, AttemptFailed, Phase
from state.memory import MemoryStore
from state.store import Store

NUM_TOKENS = 200
STUCK = "faults.spec=kv_send:delay=100000:times=1"
"""Of P's leader; what it sends after those that get through is stuck until its link is given up."""


@dataclass(frozen=True)
class Worker:
    shell: ObservedWorker
    ranks: ChildRanks
    session: RawSession

    async def lose_a_rank(self) -> None:
        """As whoever runs the worker sees it."""
        os.kill(self.ranks.pids[0], signal.SIGKILL)
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(WorkerLostError):
                await self.shell.wait_ended()
        await self.shell.stop(4.0)

    def connect(self) -> contextlib.AbstractAsyncContextManager[RawSession]:
        """Another session: `take` drops what it doesn't wait for."""
        return raw_session(self.shell.member)

    async def imports(self) -> int:
        books = await self.shell.audit()
        return books.blocks_by_state["importing"]


class House:
    def __init__(self, model: Path, stack: contextlib.AsyncExitStack) -> None:
        self._model = model
        self._stack = stack
        self._store = MemoryStore()

    async def worker(self, role: Phase, worker_id: str, *overrides: str) -> Worker:
        started = _worker(self._store, self._model, role, worker_id, overrides)
        shell, ranks = await self._stack.enter_async_context(started)
        session = await self._stack.enter_async_context(raw_session(shell.member))
        return Worker(shell, ranks, session)


@contextlib.asynccontextmanager
async def _worker(
    store: Store, model: Path, role: Phase, worker_id: str, overrides: tuple[str, ...]
) -> AsyncIterator[tuple[ObservedWorker, ChildRanks]]:
    # A block is a message, so that no prompt is sent as one; ranks take turns on a busy machine
    common = ("kv_transfer.max_message_bytes=1", "parallel.step_timeout_s=60")
    config = settings(model, *common, *overrides)
    shell = ObservedWorker(config, role, worker_id, store)
    ranks = ChildRanks(config, worker_id, num_ranks(config, role))
    try:
        await ranks.lead(shell, lambda _: None)
        yield shell, ranks
    finally:
        await shell.stop(4.0)
        await ranks.end(4.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_model(tmp_path_factory.mktemp("byte-model"))


async def hand_over(p: Worker, d: Worker, what: Attempt) -> None:
    await p.session.prefill(what)
    handoff = (await p.session.take(Started)).handoff
    assert handoff is not None
    await d.session.decode(what, handoff)


def asked(transfer_id: str, *, seed: int, max_tokens: int = 5) -> Attempt:
    return attempt(transfer_id, some_tokens(NUM_TOKENS, seed=seed), max_tokens=max_tokens)


def test_a_killed_prefill_rank_costs_its_own_pulls_and_nothing_else(model: Path) -> None:
    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            house = House(model, stack)
            victim = await house.worker(
                Phase.PREFILL, "prefill-0", "parallel.tensor_parallel_size=2", f"{STUCK}:after=1"
            )
            other = await house.worker(Phase.PREFILL, "prefill-1")
            d = await house.worker(Phase.DECODE, "decode-0")
            bystander = replace(d, session=await stack.enter_async_context(d.connect()))
            await hand_over(other, bystander, asked("bystander", seed=1, max_tokens=2000))
            await hand_over(victim, d, asked("lost", seed=2))
            while not (await d.imports() and victim.shell.transferred.num_messages):
                pass
            await victim.lose_a_rank()
            failed = await d.session.take(AttemptFailed)
            assert failed.transfer_id == "lost" and failed.retryable
            await hand_over(other, d, asked("again", seed=2))
            assert (await d.session.take(AttemptDone)).transfer_id == "again"
            assert (await bystander.session.take(AttemptDone)).transfer_id == "bystander"
            await until_whole(d.shell.member.address)
            await until_whole(other.shell.member.address)

    asyncio.run(scenario())


def test_a_killed_decode_rank_leaves_nothing_behind_on_its_peers(model: Path) -> None:
    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as stack:
            house = House(model, stack)
            # A message is a piece for each rank of the victim
            p = await house.worker(Phase.PREFILL, "prefill-0", f"{STUCK}:after=2")
            victim = await house.worker(Phase.DECODE, "decode-0", "parallel.tensor_parallel_size=2")
            other = await house.worker(Phase.DECODE, "decode-1")
            await hand_over(p, victim, asked("lost", seed=3))
            while not (await victim.imports() and p.shell.transferred.num_messages):
                pass
            await victim.lose_a_rank()
            await until_whole(p.shell.member.address)
            await hand_over(p, other, asked("again", seed=3))
            assert (await other.session.take(AttemptDone)).transfer_id == "again"
            await until_whole(p.shell.member.address)
            await until_whole(other.shell.member.address)

    asyncio.run(scenario())
