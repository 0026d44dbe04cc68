"""P as a process of its own: killed, stopped, and restarted on the same address."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest
import torch
from fakes_kv_links import link_maker
from fakes_kv_peers import (
    FIRST_TOKENS,
    LONG_S,
    DecodePeer,
    handoff,
    random_storage,
    serve_prefill,
    transfer_config,
)

from bench.tandem_server import free_port
from core.handoff import Handoff
from kv_transfer.events import BlocksArrived

NUM_RESTARTS = 20


class PrefillProcess:
    """A P in another process, told what to do over a pipe."""

    def __init__(self, process: BaseProcess, commands: Connection, epoch: str, seed: int) -> None:
        self._process = process
        self._commands = commands
        self._epoch = epoch
        self.storage = random_storage(seed)
        self.port = self._answer()

    def say(self, method: str, *arguments: object) -> None:
        self._commands.send((method, arguments))
        self._answer()

    def offer(self, transfer_id: str, num_blocks: int) -> Handoff:
        self.say("offer", transfer_id, num_blocks)
        return handoff(self.port, self._epoch, transfer_id, num_blocks)

    def signal(self, number: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, number)

    def kill(self) -> None:
        self._process.kill()
        self._process.join(LONG_S)
        self._commands.close()

    def _answer(self) -> int:
        assert self._commands.poll(LONG_S), "the process does not answer"
        answer: int = self._commands.recv()
        return answer


StartPrefill = Callable[..., PrefillProcess]


@pytest.fixture(params=["gloo", "tcp", "nearest"])
def kind(request: pytest.FixtureRequest) -> str:
    """Of the links."""
    chosen: str = request.param
    return chosen


@pytest.fixture
def start_prefill(kind: str) -> Iterator[StartPrefill]:
    """Starts P processes, forked off a server that has imported the rest; kills them at the end."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kv_transfer.service", "kv_transfer.receiver"])
    started: list[PrefillProcess] = []

    def start(
        *, epoch: str = "p1", port: int = 0, seed: int = 1, timeout_s: float = LONG_S
    ) -> PrefillProcess:
        ours, theirs = context.Pipe()
        arguments = (theirs, kind, port, epoch, seed, timeout_s)
        process = context.Process(target=serve_prefill, args=arguments)
        process.start()
        theirs.close()
        started.append(PrefillProcess(process, ours, epoch, seed))
        return started[-1]

    yield start
    for process in started:
        process.kill()


@pytest.fixture
def make_decode(kind: str) -> Iterator[Callable[[float], DecodePeer]]:
    made: list[DecodePeer] = []

    def make(timeout_s: float) -> DecodePeer:
        made.append(DecodePeer(link_maker(kind), transfer_config(timeout_s=timeout_s)))
        return made[-1]

    yield make
    for decode in made:
        decode.stop()


MakeDecode = Callable[[float], DecodePeer]


def _transfer(p: PrefillProcess, d: DecodePeer, transfer_id: str) -> None:
    """One whole transfer of five blocks, compared."""
    d.receiver.pull(p.offer(transfer_id, 5), 0)
    p.say("grant", transfer_id, 0, [9, 8, 7])
    p.say("grant", transfer_id, 3, [6, 5])
    p.say("close", transfer_id, FIRST_TOKENS)
    d.receive([0, 1, 2, 3, 4])
    assert torch.equal(p.storage.pack([9, 8, 7, 6, 5]), d.storage.pack([0, 1, 2, 3, 4]))


def test_a_killed_prefill_worker_fails_its_pulls_and_no_others(
    start_prefill: StartPrefill, make_decode: MakeDecode
) -> None:
    d = make_decode(LONG_S)
    p = start_prefill()
    d.receiver.pull(p.offer("t", 9), 0)
    p.say("grant", "t", 0, [0, 1, 2])
    d.inbox.take(BlocksArrived).release()
    p.kill()
    assert d.fail().reason == "peer_lost"
    assert d.inbox.is_empty()
    _transfer(start_prefill(epoch="p2"), d, "elsewhere")


def test_a_pull_from_a_worker_that_is_gone_fails(
    start_prefill: StartPrefill, make_decode: MakeDecode
) -> None:
    d = make_decode(LONG_S)
    p = start_prefill()
    ticket = p.offer("t", 2)
    p.kill()
    d.receiver.pull(ticket, 0)
    assert d.fail().reason == "peer_lost"


def test_a_stopped_prefill_worker_fails_its_pulls_in_time_and_serves_again_once_it_goes_on(
    start_prefill: StartPrefill, make_decode: MakeDecode
) -> None:
    """CASES 1: stopped, not dead, while D waits for blocks that nobody reports."""
    d = make_decode(3.0)
    p = start_prefill(timeout_s=3.0)
    d.receiver.pull(p.offer("t", 9), 0)
    p.say("grant", "t", 0, [0, 1, 2])
    d.inbox.take(BlocksArrived).release()
    late = p.offer("late", 2)
    p.signal(signal.SIGSTOP)
    assert d.fail().reason == "timeout"
    d.receiver.pull(late, 0)
    assert d.fail().reason == "timeout"
    p.signal(signal.SIGCONT)
    _transfer(p, d, "afterwards")


def test_twenty_restarts_on_the_same_address_are_survived(
    start_prefill: StartPrefill, make_decode: MakeDecode
) -> None:
    """CASES 8: each incarnation dies with a pull open; what is addressed to it is then refused."""
    d = make_decode(LONG_S)
    p = start_prefill(epoch="p0", port=free_port())  # nobody takes it while P is away
    for restart in range(1, NUM_RESTARTS + 1):
        _transfer(p, d, f"whole {restart}")
        d.receiver.pull(p.offer(f"open {restart}", 3), 0)
        p.say("grant", f"open {restart}", 0, [0, 1, 2])
        d.inbox.take(BlocksArrived).release()
        stale = p.offer(f"stale {restart}", 3)
        p.kill()
        assert d.fail().reason == "peer_lost"
        p = start_prefill(epoch=f"p{restart}", port=p.port, seed=restart)
        d.receiver.pull(stale, 0)
        assert d.fail().reason == "epoch_mismatch"
    _transfer(p, d, "the last")
