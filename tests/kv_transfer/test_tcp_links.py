"""What is particular to links over plain TCP: strangers at their ports, lengths, many places."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from fakes_kv_links import Link, close, heard_by_stranger, join, random_bytes
from fakes_kv_peers import LONG_S

from core.errors import TransferError
from kv_transfer.link import GatheringLink, Pending
from kv_transfer.link_port import MAX_GREETINGS, digest
from kv_transfer.tcp_link import TcpLinkMaker


@pytest.fixture
def maker() -> Iterator[TcpLinkMaker]:
    made = TcpLinkMaker(host="127.0.0.1")
    yield made
    made.close()


def transfer(link: Link, size: int = 100_000) -> None:
    """A message arrives as it was sent."""
    sending, receiving = link
    message = random_bytes(size)
    buffer = torch.zeros_like(message)
    pending = receiving.recv(buffer)
    sent = sending.send(message)
    with ThreadPoolExecutor(1) as threads:
        sent_whole = threads.submit(sent.wait, LONG_S)
        pending.wait(LONG_S)
        sent_whole.result(LONG_S)
    assert torch.equal(message, buffer)


def _wait_for(messages: Sequence[Pending]) -> None:
    for pending in messages:
        pending.wait(LONG_S)


@pytest.mark.parametrize(
    "words",
    [
        b"",
        digest("a guessed token/link/0"),
        (1).to_bytes(8, "little"),  # what gloo takes for a peer's greeting
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(range(256)) * 400,
    ],
    ids=["nothing", "another name", "a number", "http", "noise"],
)
def test_who_cannot_show_the_name_hears_nothing_of_a_link_and_stops_none(
    maker: TcpLinkMaker, monkeypatch: pytest.MonkeyPatch, words: bytes
) -> None:
    monkeypatch.setattr("kv_transfer.link_port.GREETING_TIMEOUT_S", 0.5)
    link = join(maker)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(maker.accept, "another", LONG_S)
        assert heard_by_stranger((maker.host().host, maker.host().port), words) == b""
        transfer(link)
        assert not waiting.done(), "the stranger is not taken for the peer"
        late = (maker.dial(maker.host(), "another", LONG_S), waiting.result(LONG_S))
    transfer(late)
    close(link)
    close(late)


def test_a_link_has_one_peer(maker: TcpLinkMaker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kv_transfer.link_port.GREETING_TIMEOUT_S", 0.5)
    link = join(maker, "once")
    with pytest.raises(TransferError, match="does not wait for this link") as error:
        maker.dial(maker.host(), "once", LONG_S)
    assert error.value.reason == "peer_lost"
    transfer(link)
    close(link)


def test_a_crowd_that_connects_and_says_nothing_holds_no_link_up(maker: TcpLinkMaker) -> None:
    at = maker.host()
    with contextlib.ExitStack() as crowd:
        for _ in range(2 * MAX_GREETINGS):
            crowd.enter_context(socket.create_connection((at.host, at.port), LONG_S))
        link = join(maker)
        transfer(link)
    close(link)


@pytest.mark.parametrize("size", [0, 1, 99, 101, 4_000_000])
def test_a_message_of_another_length_than_agreed_ends_the_link(
    maker: TcpLinkMaker, size: int
) -> None:
    sending, receiving = link = join(maker)
    after = torch.full((8,), 7, dtype=torch.uint8)
    buffer = torch.cat([torch.zeros(100, dtype=torch.uint8), after])
    pending = receiving.recv(buffer[:100])
    sending.send(random_bytes(size))
    with pytest.raises(TransferError) as error:
        pending.wait(LONG_S)
    assert error.value.reason == "corrupt"
    assert torch.equal(buffer[100:], after), "nothing is written beyond the buffer"
    close(link)


def test_messages_larger_than_what_the_system_buffers_arrive_whole(maker: TcpLinkMaker) -> None:
    link = join(maker)
    for _ in range(2):
        transfer(link, 64 * 1024 * 1024)
    close(link)


def test_a_message_of_many_places_is_one_of_their_bytes_in_order(maker: TcpLinkMaker) -> None:
    """More places than the system takes in one call, and two messages that go together."""
    sending, receiving = link = join(maker)
    assert isinstance(sending, GatheringLink)
    pool = random_bytes(5000 * 1000)
    rows = pool.view(5000, 1000)
    order = torch.randperm(5000)
    memory = pool.numpy().data
    places = [memory[row * 1000 : (row + 1) * 1000] for row in order.tolist()]
    sends = [sending.send_from(places[:2500]), sending.send_from(places[2500:])]
    buffers = torch.zeros(2, 2500, 1000, dtype=torch.uint8)
    receives = [receiving.recv(buffer) for buffer in buffers]
    with ThreadPoolExecutor(1) as threads:
        sent = threads.submit(_wait_for, sends)
        _wait_for(receives)
        sent.result(LONG_S)
    assert torch.equal(buffers.view(5000, 1000), rows[order])
    close(link)
