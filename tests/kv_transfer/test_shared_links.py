"""Links through shared memory: what is in place, and that nothing stays behind."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import fakes_shared_memory
import pytest
import torch
from fakes_certificates import new_certificates
from fakes_kv_links import (
    NAME,
    SIZE,
    close,
    join,
    link_maker,
    put,
    random_bytes,
    shared,
)
from fakes_kv_peers import LONG_S

from core.errors import TransferError
from kv_transfer.link import Pending, Rendezvous
from kv_transfer.local_port import dial_local
from kv_transfer.nearest_link import NearestLinkMaker
from kv_transfer.shared_link import SharedLinkMaker
from kv_transfer.shared_memory import create_shared, map_shared


@pytest.fixture
def maker() -> Iterator[SharedLinkMaker]:
    made = SharedLinkMaker()
    yield made
    made.close()


def test_a_message_is_in_place_when_it_arrives_and_stays_when_its_sender_is_gone(
    maker: SharedLinkMaker,
) -> None:
    link = sending, receiving = join(maker)
    here, there = shared(link)
    message = random_bytes(300)
    pending = receiving.recv(there[100:400])
    here[100:400] = message
    sending.send(here[100:400]).wait(LONG_S)
    pending.wait(LONG_S)
    close(link)
    del here
    assert torch.equal(there[100:400], message)
    assert not there[:100].any() and not there[400:].any(), "it begins as zeros"


def test_who_receives_into_memory_of_its_own_gets_a_copy(maker: SharedLinkMaker) -> None:
    link = sending, receiving = join(maker)
    first, second = messages = put(sending, random_bytes(500), random_bytes(500))
    buffers = [torch.zeros(500, dtype=torch.uint8) for _ in messages]
    sent = [sending.send(message) for message in messages]
    for buffer in buffers:
        receiving.recv(buffer).wait(LONG_S)
    for pending in sent:
        pending.wait(LONG_S)
    kept = [first.clone(), second.clone()]
    first.zero_()
    assert all(torch.equal(a, b) for a, b in zip(buffers, kept, strict=True))
    close(link)


def test_more_messages_are_under_way_than_a_socket_holds(maker: SharedLinkMaker) -> None:
    link = sending, receiving = join(maker)
    here, there = shared(link)
    sent = [sending.send(here[i : i + 1]) for i in range(SIZE)]
    received = [receiving.recv(there[i : i + 1]) for i in range(SIZE)]
    with ThreadPoolExecutor(1) as threads:
        done = threads.submit(_wait_for_all, received)
        for pending in sent:
            pending.wait(LONG_S)
        done.result(LONG_S)
    close(link)


def _wait_for_all(messages: Sequence[Pending]) -> None:
    for pending in messages:
        pending.wait(LONG_S)


@pytest.mark.parametrize("expected", [(0, 101), (1, 100)], ids=["a longer one", "elsewhere"])
def test_another_message_than_is_awaited_ends_the_link(
    maker: SharedLinkMaker, expected: tuple[int, int]
) -> None:
    link = sending, receiving = join(maker)
    here, there = shared(link)
    first, size = expected
    pending = receiving.recv(there[first : first + size])
    sending.send(here[:100]).wait(LONG_S)
    with pytest.raises(TransferError) as error:
        pending.wait(LONG_S)
    assert error.value.reason == "corrupt"
    with pytest.raises(TransferError):
        sending.recv(torch.zeros(1)).wait(LONG_S)
    close(link)


def test_ends_that_plan_for_different_sizes_do_not_share(maker: SharedLinkMaker) -> None:
    link = sending, receiving = join(maker)
    sending.share(SIZE, LONG_S)
    with pytest.raises(TransferError) as error:
        receiving.share(SIZE + 1, LONG_S)
    assert error.value.reason == "corrupt"
    close(link)


def test_an_end_whose_peer_shares_nothing_waits_until_its_deadline_or_an_abort(
    maker: SharedLinkMaker,
) -> None:
    links = [join(maker, name) for name in ("late", "aborted")]
    with pytest.raises(TransferError) as error:
        links[0][1].share(SIZE, 0.05)
    assert error.value.reason == "timeout"
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(links[1][1].share, SIZE, LONG_S)
        links[1][1].abort()
        raised = waiting.exception(LONG_S)
    assert isinstance(raised, TransferError) and raised.reason == "peer_lost"
    for link in links:
        close(link)


def test_memory_that_could_be_cut_short_is_not_read() -> None:
    """Whoever reads what is gone is killed."""
    descriptor = os.memfd_create("unsealed")
    try:
        os.ftruncate(descriptor, SIZE)
        with pytest.raises(OSError, match="not sealed"):
            map_shared(descriptor, SIZE)
    finally:
        os.close(descriptor)
    _, descriptor = create_shared(SIZE)
    try:
        with pytest.raises(PermissionError):
            os.ftruncate(descriptor, SIZE - 1)
        with pytest.raises(OSError, match="bytes, not"):
            map_shared(descriptor, SIZE - 1)
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("word", [b"x", bytes(17), bytes(50)], ids=["short", "unknown", "long"])
def test_a_peer_that_says_what_makes_no_sense_loses_its_link(
    maker: SharedLinkMaker, word: bytes
) -> None:
    with ThreadPoolExecutor(1) as threads:
        accepting = threads.submit(maker.accept, NAME, LONG_S)
        with dial_local(maker.host().local, NAME, LONG_S) as peer:
            link = accepting.result(LONG_S)
            peer.send(word)
            with pytest.raises(TransferError) as error:
                link.recv(torch.zeros(1)).wait(LONG_S)
    assert error.value.reason == "corrupt"
    link.close()


def _share_and_wait(commands: Connection, rendezvous: Rendezvous) -> None:
    """A D process that has joined a link and taken what is shared."""
    link = SharedLinkMaker().dial(rendezvous, NAME, LONG_S)
    memory = link.share(SIZE, LONG_S)
    assert memory is not None
    link.recv(memory[:1])
    commands.send("joined")
    commands.recv()


def test_a_killed_peer_leaves_nothing_behind(maker: SharedLinkMaker) -> None:
    before, mapped = fakes_shared_memory.names(), num_mappings()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kv_transfer.service", "kv_transfer.receiver"])
    ours, theirs = context.Pipe()
    process = context.Process(target=_share_and_wait, args=(theirs, maker.host()))
    process.start()
    link = maker.accept(NAME, LONG_S)
    memory = link.share(SIZE, LONG_S)
    assert memory is not None and ours.poll(LONG_S) and process.pid is not None
    link.send(memory[:1]).wait(LONG_S)  # it is awaited
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(TransferError) as error:
        link.send(memory[1:2]).wait(LONG_S)
    assert error.value.reason == "peer_lost"
    process.join(LONG_S)
    link.close()
    del memory, link, error
    assert num_mappings() <= mapped
    fakes_shared_memory.assert_none_left(before)


def num_mappings() -> int:
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:tandem-kv")


def test_fifty_links_leave_no_descriptor_and_no_memory(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    network = link_maker("secure", new_certificates(tmp_path))
    maker = NearestLinkMaker(SharedLinkMaker(), network)
    close(join(maker))  # leaves both ports open
    before, mapped = descriptors(), num_mappings()
    for number in range(50):
        link = join(maker, f"{number}")
        for memory in shared(link):
            memory.fill_(number)
        if number % 2:
            link[0].abort()
        close(link)
        del memory
    assert num_mappings() <= mapped
    deadline = time.monotonic() + LONG_S
    while descriptors() > before:  # the network's waits end in threads of their own
        assert time.monotonic() < deadline, "descriptors are left"
    maker.close()
