"""Handoffs of every size end by themselves, and what is late never reaches anybody's blocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from fakes_cases import CaseHouse, ask, case_house, check_same, settings, some_tokens, tokens_of
from fakes_loop_thread import DEADLINE_S

from kv_transfer.link import DataLink, LinkMaker, Pending, Rendezvous
from kv_transfer.torch_link import TorchLinkMaker

BLOCK = 16


@pytest.fixture(scope="module")
def house(model: Path) -> Iterator[CaseHouse]:
    with case_house(settings(model)) as made:
        yield made


@pytest.mark.parametrize("length", [1, 5, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 5 * BLOCK])
def test_nothing_is_pinned_after_a_prompt_that_both_sides_know(
    house: CaseHouse, length: int
) -> None:
    """Case 5. The pull of a prompt whose full blocks D holds carries at most its last block."""
    prompt = some_tokens(length, seed=length)

    async def test() -> None:
        first = await house.ask(prompt, max_tokens=3)
        await house.check_whole()
        for _ in range(3):
            before = house.d.transferred
            again = await house.ask(prompt, max_tokens=3)
            await house.check_whole()
            check_same(again, first)
            after = house.d.transferred
            assert after.num_transfers == before.num_transfers + 1
            assert after.num_messages - before.num_messages == (1 if length % BLOCK else 0)

    house.run(test())


def test_a_prompt_that_only_the_prefill_worker_knows_is_handed_over_whole(
    house: CaseHouse,
) -> None:
    """Case 5. P has every full block before D has met the prompt."""
    prompt = some_tokens(6 * BLOCK + 1, seed=77)

    async def test() -> None:
        alone = await house.ask(prompt, max_tokens=1)
        await house.check_whole()
        before = house.d.transferred.num_bytes
        answer = await house.ask(prompt, max_tokens=5)
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 6 * BLOCK
        assert tokens_of(answer)[0][0] == tokens_of(alone)[0][0]
        block_bytes = house.d.parts.engine.spec.bytes_per_block
        assert house.d.transferred.num_bytes - before == 7 * block_bytes

    house.run(test())


class SlowMaker:
    """P's links keep back each message from the `first`-th on, until told to let go."""

    def __init__(self, inner: LinkMaker, first: int) -> None:
        self._inner = inner
        self._first = first
        self._num_sent = 0
        self._num_received = 0
        self.holding = threading.Event()
        self.let_go = threading.Event()
        self.arrived = threading.Event()
        """D has received a message that was kept back."""

    def host(self) -> Rendezvous:
        return self._inner.host()

    def accept(self, name: str, timeout_s: float) -> DataLink:
        return _SlowLink(self, self._inner.accept(name, timeout_s))

    def abandon(self, name: str) -> None:
        self._inner.abandon(name)

    def dial(self, rendezvous: Rendezvous, name: str, timeout_s: float) -> DataLink:
        return _SlowLink(self, self._inner.dial(rendezvous, name, timeout_s))

    def close(self) -> None:
        self._inner.close()

    def before_send(self) -> None:
        self._num_sent += 1
        if self._num_sent > self._first:
            self.holding.set()
            assert self.let_go.wait(DEADLINE_S)

    def after_receive(self) -> None:
        self._num_received += 1
        if self._num_received > self._first:
            self.arrived.set()


class _SlowLink:
    def __init__(self, maker: SlowMaker, inner: DataLink) -> None:
        self._maker = maker
        self._inner = inner

    def share(self, size_bytes: int, timeout_s: float) -> torch.Tensor | None:
        return self._inner.share(size_bytes, timeout_s)

    def send(self, message: torch.Tensor) -> Pending:
        self._maker.before_send()
        return self._inner.send(message)

    def recv(self, buffer: torch.Tensor) -> Pending:
        return _Receiving(self._maker, self._inner.recv(buffer))

    def abort(self) -> None:
        self._inner.abort()

    def close(self) -> None:
        self._inner.close()


class _Receiving:
    def __init__(self, maker: SlowMaker, inner: Pending) -> None:
        self._maker = maker
        self._inner = inner

    def wait(self, timeout_s: float) -> None:
        self._inner.wait(timeout_s)
        self._maker.after_receive()


POOL_BLOCKS = 32
PROMPT_BLOCKS = 20
MESSAGE_BLOCKS = 4


@pytest.fixture(params=[0, 2], ids=lambda first: f"message-{first}")
def maker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SlowMaker:
    """Every worker started from here on makes its links with it."""
    made = SlowMaker(TorchLinkMaker(host="127.0.0.1", backend="gloo"), request.param)
    monkeypatch.setattr("cluster.worker_shell.make_links", lambda *_, **__: made)
    return made


@pytest.fixture
def slow_house(model: Path, maker: SlowMaker) -> Iterator[CaseHouse]:
    """Whatever the second request is, D's pool must give it blocks of the first."""
    message_bytes = MESSAGE_BLOCKS * 2 * 2 * 2 * BLOCK * 16 * 4
    overrides = ["model.max_model_len=512", f"kv_transfer.max_message_bytes={message_bytes}"]
    small = settings(model, *overrides, f"cache.num_blocks={POOL_BLOCKS}")
    with case_house(settings(model, *overrides), decode_config=small) as house:
        assert message_bytes == MESSAGE_BLOCKS * house.d.parts.engine.spec.bytes_per_block
        yield house
        maker.let_go.set()


async def leave_while_a_message_is_late(house: CaseHouse, maker: SlowMaker) -> None:
    """The first request: over before its KV is there; D's blocks are free again."""
    async with house.asking(some_tokens(PROMPT_BLOCKS * BLOCK, seed=1), max_tokens=64):
        await house.until(lambda: house.blocks("decode-0", "importing") == PROMPT_BLOCKS)
        await asyncio.to_thread(maker.holding.wait, DEADLINE_S)
    await house.until(lambda: house.held("decode-0") == 0)


def test_a_late_message_does_not_reach_the_blocks_of_the_next_request(
    slow_house: CaseHouse, maker: SlowMaker
) -> None:
    """Case 3. D has computed the next request's KV itself when the late message arrives."""
    house, steps = slow_house, slow_house.d.steps
    combined = house.add_front("router.mode=combined", "model.max_model_len=512")
    prompt = some_tokens((POOL_BLOCKS - 4) * BLOCK, seed=2)

    async def test() -> None:
        await combined.until_connected(2)
        await leave_while_a_message_is_late(house, maker)
        steps.hold(after=1)
        asking = asyncio.create_task(ask(combined, prompt, max_tokens=40))
        await steps.until_held()
        maker.let_go.set()
        await asyncio.to_thread(maker.arrived.wait, DEADLINE_S)
        steps.release()
        answer = await asking
        await house.check_whole()
        check_same(answer, await ask(combined, prompt, max_tokens=40, cache_salt="alone"))

    house.run(test())


def test_the_next_pull_on_a_slow_link_gets_what_is_its_own(
    slow_house: CaseHouse, maker: SlowMaker
) -> None:
    """Case 3. The next request's messages queue up behind the late one, on the same link."""
    house, prompt = slow_house, some_tokens(PROMPT_BLOCKS * BLOCK, seed=2)

    async def test() -> None:
        await leave_while_a_message_is_late(house, maker)
        async with house.asking(prompt, max_tokens=30) as asking:
            await house.until(lambda: house.blocks("decode-0", "importing") == PROMPT_BLOCKS)
            maker.let_go.set()
            answer = await asking
        await house.check_whole()
        check_same(answer, await house.ask(prompt, max_tokens=30, cache_salt="alone"))

    house.run(test())
