"""Plans reach every rank in order; whoever is gone, silent or a stranger is noticed."""

from __future__ import annotations

import contextlib
import queue
import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from core.errors import WorkerLostError
from engine.plan_channel import PlanListener, PlanReceiver, PlanSender
from engine.plan_message import CopyBlocks, Stop

HOST = "127.0.0.1"
LONG_S = 60.0


class Channel:
    """A leader with its listener, and what its watch said."""

    def __init__(self, heartbeat_s: float, timeout_s: float) -> None:
        self.listener = PlanListener(HOST)
        self.lost: queue.Queue[WorkerLostError] = queue.Queue()
        self._times = {"heartbeat_s": heartbeat_s, "timeout_s": timeout_s}
        self._threads = ThreadPoolExecutor()
        self._stack = contextlib.ExitStack()

    def gather(self, size: int) -> Future[list[socket.socket]]:
        return self._threads.submit(self.listener.gather, size, LONG_S)

    def join(self, rank: int) -> PlanReceiver:
        receiver = PlanReceiver(
            HOST, self.listener.port, self.listener.token, rank, timeout_s=LONG_S
        )
        self._stack.callback(receiver.close)
        return receiver

    def sender(self, gathered: Future[list[socket.socket]]) -> PlanSender:
        sender = PlanSender(gathered.result(LONG_S), **self._times)
        self._stack.callback(sender.close)
        return sender

    def close(self) -> None:
        self.listener.close()
        self._stack.close()
        self._threads.shutdown()


class Channels:
    """Makes channels, and closes them after the test."""

    def __init__(self) -> None:
        self._made: list[Channel] = []

    def __call__(self, heartbeat_s: float = LONG_S, timeout_s: float = LONG_S) -> Channel:
        self._made.append(Channel(heartbeat_s, timeout_s))
        return self._made[-1]

    def close(self) -> None:
        for channel in self._made:
            channel.close()


@pytest.fixture
def make_channel() -> Iterator[Channels]:
    channels = Channels()
    yield channels
    channels.close()


def test_every_rank_gets_every_message_in_order(make_channel: Channels) -> None:
    channel = make_channel()
    gathered = channel.gather(3)
    second, first = channel.join(2), channel.join(1)
    sender = channel.sender(gathered)
    messages = [CopyBlocks(((i, i + 1),) * i) for i in range(20)]
    for message in messages:
        sender.send(message)
    for receiver in (first, second):
        assert [receiver.receive() for _ in messages] == messages


def test_the_end_of_a_leader_tells_its_ranks_to_stop(make_channel: Channels) -> None:
    channel = make_channel()
    gathered = channel.gather(2)
    receiver = channel.join(1)
    channel.sender(gathered).close()
    assert receiver.receive() == Stop()


def test_strangers_and_doubles_are_cut_off_and_keep_nobody_out(
    make_channel: Channels,
) -> None:
    channel = make_channel()
    gathered = channel.gather(3)
    port, token = channel.listener.port, channel.listener.token
    silent = socket.create_connection((HOST, port))
    channel.join(1)
    almost = token[:-1] + bytes([token[-1] ^ 1])
    for said, rank in [(bytes(32), 2), (almost, 2), (token, 1), (token, 0), (token, 3)]:
        with pytest.raises(WorkerLostError, match="takes no rank"):
            PlanReceiver(HOST, port, said, rank, timeout_s=LONG_S)
    channel.join(2)
    assert len(gathered.result(LONG_S)) == 2
    assert silent.recv(1) == b"", "who said nothing is sent away when all are there"
    silent.close()
    with pytest.raises(WorkerLostError, match="no leader"):
        channel.join(1)
    channel.sender(gathered)


def test_ranks_that_do_not_come_are_named(make_channel: Channels) -> None:
    channel = make_channel()
    with pytest.raises(WorkerLostError, match=r"ranks \[1, 2\] did not come"):
        channel.listener.gather(3, 0.01)


def test_a_listener_that_is_closed_stops_waiting(make_channel: Channels) -> None:
    channel = make_channel()
    gathered = channel.gather(2)
    channel.listener.close()
    with pytest.raises(WorkerLostError, match="could not connect"):
        gathered.result(LONG_S)


def test_a_rank_waits_as_long_as_heartbeats_come(make_channel: Channels) -> None:
    channel = make_channel(heartbeat_s=0.01)
    gathered = channel.gather(2)
    receiver = channel.join(1)
    sender = channel.sender(gathered)
    receiver.patience(LONG_S)
    sender.watch(channel.lost.put)
    with ThreadPoolExecutor(1) as waiting:
        received = waiting.submit(receiver.receive)
        with pytest.raises(TimeoutError):
            received.result(0.2)
        sender.send(Stop())
        assert received.result(LONG_S) == Stop()
    assert channel.lost.empty()


def test_a_rank_that_goes_is_noticed_while_nothing_is_computed(
    make_channel: Channels,
) -> None:
    channel = make_channel()
    gathered = channel.gather(3)
    channel.join(1)
    gone = channel.join(2)
    channel.sender(gathered).watch(channel.lost.put)
    gone.close()
    assert "rank 2 of the group is gone" in channel.lost.get(timeout=LONG_S).message


def test_a_rank_that_stops_answering_is_lost(make_channel: Channels) -> None:
    channel = make_channel(heartbeat_s=0.01, timeout_s=0.05)
    gathered = channel.gather(2)
    channel.join(1)
    channel.sender(gathered).watch(channel.lost.put)
    assert "ranks [1] did not answer" in channel.lost.get(timeout=LONG_S).message


def test_a_rank_owes_no_answer_while_it_computes_with_the_leader(
    make_channel: Channels,
) -> None:
    channel = make_channel(heartbeat_s=0.01, timeout_s=0.05)
    gathered = channel.gather(2)
    channel.join(1)
    sender = channel.sender(gathered)
    with sender.step(CopyBlocks(())):
        sender.watch(channel.lost.put)
        with pytest.raises(queue.Empty):
            channel.lost.get(timeout=0.3)
    assert "ranks [1] did not answer" in channel.lost.get(timeout=LONG_S).message


def test_a_leader_that_goes_or_falls_silent_is_lost(make_channel: Channels) -> None:
    channel = make_channel()
    gathered = channel.gather(3)
    first, second = channel.join(1), channel.join(2)
    first.patience(0.01)
    with pytest.raises(WorkerLostError, match="the leader is lost"):
        first.receive()
    for connection in gathered.result(LONG_S):
        connection.close()
    with pytest.raises(WorkerLostError, match="the peer closed"):
        second.receive()


def test_plans_are_settled_when_sent_and_steps_when_their_leader_has_done_its_share(
    make_channel: Channels,
) -> None:
    channel = make_channel()
    gathered = channel.gather(2)
    channel.join(1)
    sender = channel.sender(gathered)
    sender.send(CopyBlocks(((0, 1),)))
    assert sender.num_settled == 1
    with sender.step(CopyBlocks(((1, 2),))):
        assert sender.num_settled == 1
    assert sender.num_settled == 2
