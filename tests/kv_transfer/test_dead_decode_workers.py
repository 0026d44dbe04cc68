"""D as a process of its own, killed or stopped in the middle of a pull, seen by P."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
from multiprocessing.connection import Connection

import pytest
import torch
from fakes_kv_links import link_maker
from fakes_kv_peers import LONG_S, DecodePeer, PrefillPeer, transfer_config

from core.handoff import Handoff
from kv_transfer.events import BlocksArrived, LeaseEnded, LeaseOutcome

ALLOWANCE = 5
"""For a machine that is busy with other things."""
KILLED_S = 1.0
"""Promised: how long after a peer's death its transfers may take to fail."""
TIMEOUT_S = 3.0
"""The default of `kv_transfer.timeout_s`."""


def _pull(pipe: Connection, kind: str, handoff: Handoff, timeout_s: float) -> None:
    """A D that pulls, says when the first blocks are there, and keeps them for ever."""
    torch.set_num_threads(1)
    d = DecodePeer(link_maker(kind), transfer_config(timeout_s=timeout_s))
    d.receiver.pull(handoff, 0)
    d.inbox.take(BlocksArrived)
    pipe.send("importing")
    pipe.recv()


@pytest.fixture(params=["gloo", "tcp", "nearest"])
def kind(request: pytest.FixtureRequest) -> str:
    """Of the links."""
    chosen: str = request.param
    return chosen


@pytest.mark.parametrize(
    ("number", "timeout_s", "within_s"),
    [(signal.SIGKILL, LONG_S, KILLED_S), (signal.SIGSTOP, TIMEOUT_S, TIMEOUT_S)],
    ids=["killed", "stopped"],
)
def test_a_lease_that_a_decode_worker_pulls_ends_by_the_deadline_once_that_is_gone(
    kind: str, number: signal.Signals, timeout_s: float, within_s: float
) -> None:
    """A killed one is noticed at once, whatever the deadline."""
    p = PrefillPeer(link_maker(kind), transfer_config(timeout_s=timeout_s))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kv_transfer.service", "kv_transfer.receiver"])
    ours, theirs = context.Pipe()
    process = context.Process(target=_pull, args=(theirs, kind, p.offer("t", 9), timeout_s))
    process.start()
    theirs.close()
    try:
        p.sender.grant("t", 0, [0, 1, 2])
        assert ours.poll(LONG_S) and ours.recv() == "importing"
        bystander = p.offer("bystander", 2)
        assert process.pid is not None
        os.kill(process.pid, number)
        assert _next(p, ALLOWANCE * within_s) == LeaseEnded("t", LeaseOutcome.PEER_LOST)
        assert p.sender.num_leases == 1, f"{bystander.transfer_id} is nobody's loss"
    finally:
        process.kill()
        process.join(LONG_S)
        ours.close()
        p.stop()


def _next(p: PrefillPeer, within_s: float) -> object:
    try:
        return p.inbox._events.get(timeout=within_s)
    except queue.Empty:
        raise AssertionError(f"the lease still lives after {within_s} s") from None
