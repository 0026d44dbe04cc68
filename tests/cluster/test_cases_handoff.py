"""Handoffs of every size end by themselves, and what is late never reaches anybody's blocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes_byte_model import write_byte_model
from fakes_cases import CaseHouse, case_house, check_same, settings, some_tokens, tokens_of
from fakes_loop_thread import DEADLINE_S

from kv_transfer.link import DataLink, LinkMaker, Pending, Rendezvous
from kv_transfer.torch_link import TorchLinkMaker

BLOCK = 16


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_byte_model(tmp_path_factory.mktemp("byte-model"))


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
        self.num_sent = 0
        self.holding = threading.Event()
        self.let_go = threading.Event()

    def host(self) -> Rendezvous:
        return self._inner.host()

    def accept(self, name: str, timeout_s: float) -> DataLink:
        return _SlowLink(self, self._inner.accept(name, timeout_s))

    def dial(self, rendezvous: Rendezvous, name: str, timeout_s: float) -> DataLink:
        return self._inner.dial(rendezvous, name, timeout_s)

    def close(self) -> None:
        self._inner.close()

    def pass_by(self) -> None:
        self.num_sent += 1
        if self.num_sent > self._first:
            self.holding.set()
            assert self.let_go.wait(DEADLINE_S)


class _SlowLink:
    def __init__(self, maker: SlowMaker, inner: DataLink) -> None:
        self._maker = maker
        self._inner = inner

    def send(self, message: object) -> Pending:
        self._maker.pass_by()
        return self._inner.send(message)  # type: ignore[arg-type]

    def recv(self, buffer: object) -> Pending:
        return self._inner.recv(buffer)  # type: ignore[arg-type]

    def abort(self) -> None:
        self._inner.abort()

    def close(self) -> None:
        self._inner.close()


@pytest.mark.parametrize("first", [0, 2])
def test_a_late_message_does_not_reach_the_blocks_next_owner(
    model: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    """Case 3. The client leaves while a message is late; the next request gets the same blocks.

    D's pool holds one of the two prompts only, so the second can't but take the first one's blocks.
    """
    maker = SlowMaker(TorchLinkMaker(host="127.0.0.1", backend="gloo"), first)
    monkeypatch.setattr("cluster.worker_shell.make_links", lambda *_, **__: maker)
    block_bytes = 2 * 2 * 2 * BLOCK * 16 * 4
    overrides = ["model.max_model_len=512", f"kv_transfer.max_message_bytes={4 * block_bytes}"]
    small = settings(model, *overrides, "cache.num_blocks=32")
    left, next_one = some_tokens(20 * BLOCK, seed=1), some_tokens(20 * BLOCK, seed=2)

    async def test(house: CaseHouse) -> None:
        async with house.asking(left, max_tokens=64):
            await house.until(lambda: house.blocks("decode-0", "importing") == 20)
            await asyncio.to_thread(maker.holding.wait, DEADLINE_S)
        await house.until(lambda: house.held("decode-0") == 0)
        async with house.asking(next_one, max_tokens=30) as asking:
            await house.until(lambda: house.blocks("decode-0", "importing") == 20)
            maker.let_go.set()
            answer = await asking
        await house.check_whole()
        alone = await house.ask(next_one, max_tokens=30, cache_salt="alone")
        check_same(answer, alone)

    with case_house(settings(model, *overrides), decode_config=small) as house:
        assert house.d.parts.engine.spec.bytes_per_block == block_bytes
        house.run(test(house))
