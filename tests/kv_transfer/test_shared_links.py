"""Links through shared memory: what is in place, who may join, and that nothing stays behind."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from fakes_certificates import new_certificates
from fakes_kv_links import link_maker, put
from fakes_kv_peers import LONG_S

from core.errors import TransferError
from kv_transfer.backend import Backend, make_links
from kv_transfer.link import DataLink, LinkMaker, Pending, Rendezvous
from kv_transfer.link_port import digest
from kv_transfer.local_port import _address, dial_local
from kv_transfer.nearest_link import NearestLinkMaker
from kv_transfer.shared_link import SharedLinkMaker
from kv_transfer.shared_memory import create_shared, map_shared

NAME = "a secret token/link/0"
SIZE = 1000
NOBODY = 65534
"""A user that runs no test."""
CLONE_NEWNET = 0x40000000

Link = tuple[DataLink, DataLink]


@pytest.fixture
def maker() -> Iterator[SharedLinkMaker]:
    made = SharedLinkMaker()
    yield made
    made.close()


def join(maker: LinkMaker, name: str = NAME, dialer: LinkMaker | None = None) -> Link:
    """P's and D's end."""
    with ThreadPoolExecutor(1) as threads:
        accepting = threads.submit(maker.accept, name, LONG_S)
        receiving = (dialer or maker).dial(maker.host(), name, LONG_S)
        return accepting.result(LONG_S), receiving


def shared(link: Link) -> tuple[torch.Tensor, torch.Tensor]:
    """The same memory, as each end sees it."""
    here, there = (end.share(SIZE, LONG_S) for end in link)
    assert here is not None and there is not None
    return here, there


def close(link: Link) -> None:
    for end in link:
        end.close()


def is_shared(link: Link) -> bool:
    ends = [end.share(SIZE, LONG_S) for end in link]
    return all(memory is not None for memory in ends)


def random_bytes(size: int) -> torch.Tensor:
    return torch.randint(256, (size,), dtype=torch.uint8)


# What is shared


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


# Who may join


def say(maker: LinkMaker, words: bytes) -> bytes:
    """What a stranger of our user hears who says this."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.settimeout(LONG_S)
        stranger.connect(_address(maker.host().local))
        with contextlib.suppress(OSError):
            stranger.sendall(words)
            stranger.shutdown(socket.SHUT_WR)
            return stranger.recv(100)
        return b""


@pytest.mark.parametrize(
    "words",
    [b"noise", bytes(32), digest("a guessed name"), bytes(200)],
    ids=["too little", "zeros", "another token", "too much"],
)
def test_who_has_no_token_of_an_awaited_link_is_cut_off_and_stops_none(
    maker: SharedLinkMaker, words: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kv_transfer.link_port.GREETING_TIMEOUT_S", 0.1)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(maker.accept, NAME, LONG_S)
        assert say(maker, words) == b""
        with pytest.raises(TransferError) as error:
            maker.dial(maker.host(), "a guessed name", LONG_S)
        assert error.value.reason == "peer_lost"
        assert not waiting.done()
        link = maker.dial(maker.host(), NAME, LONG_S), waiting.result(LONG_S)
        with pytest.raises(TransferError):  # nor is there a second peer of one link
            maker.dial(maker.host(), NAME, LONG_S)
    close(link)


def _try_to_join(commands: Connection, rendezvous: Rendezvous, enter: Callable[[], None]) -> None:
    """What becomes of a D that is somebody, or somewhere, else; and what it hears when it does not
    care who P is. It knows the token."""
    enter()
    try:
        SharedLinkMaker().dial(rendezvous, NAME, LONG_S)
        reason = "joined"
    except TransferError as error:
        reason = error.reason
    heard = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
        stranger.settimeout(LONG_S)
        with contextlib.suppress(OSError):
            stranger.connect(_address(rendezvous.local))
            stranger.sendall(digest(NAME))
            heard = stranger.recv(100)
    commands.send((reason, heard))


def _as_nobody() -> None:
    os.setuid(NOBODY)


def _in_a_network_of_its_own() -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "no network namespace")


def elsewhere(maker: LinkMaker, enter: Callable[[], None]) -> object:
    """What `_try_to_join` says from another process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kv_transfer.service", "kv_transfer.receiver"])
    ours, theirs = context.Pipe()
    process = context.Process(target=_try_to_join, args=(theirs, maker.host(), enter))
    process.start()
    theirs.close()
    try:
        assert ours.poll(LONG_S)
        return ours.recv()
    finally:
        process.join(LONG_S)
        ours.close()


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


@as_root
@pytest.mark.parametrize(
    "enter", [_as_nobody, _in_a_network_of_its_own], ids=["another user", "another network"]
)
def test_another_user_joins_no_link_even_with_the_token_nor_does_who_is_elsewhere(
    maker: SharedLinkMaker, enter: Callable[[], None]
) -> None:
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(maker.accept, NAME, LONG_S)
        assert elsewhere(maker, enter) == ("incompatible", b"")
        assert not waiting.done()
        link = maker.dial(maker.host(), NAME, LONG_S), waiting.result(LONG_S)
    close(link)


def test_nobody_shows_a_token_to_another_user(
    maker: SharedLinkMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name may be taken, once its P is dead, by whoever has seen it."""
    host = maker.host()
    monkeypatch.setattr("kv_transfer.local_port.os.geteuid", lambda: NOBODY)
    with pytest.raises(TransferError, match="belongs to user") as error:
        SharedLinkMaker().dial(host, NAME, LONG_S)
    assert error.value.reason == "incompatible"


# Which way is taken


@pytest.mark.parametrize("network", ["gloo", "secure"])
def test_workers_of_one_machine_share_memory_and_others_take_the_network(
    network: str, tmp_path: Path
) -> None:
    tls = new_certificates(tmp_path)
    maker = NearestLinkMaker(SharedLinkMaker(), link_maker(network, tls))
    near = join(maker)
    assert is_shared(near)
    # The name of a machine where nobody like P is
    elsewhere = replace(maker.host(), local="tandem-kv-of-another-machine")
    with ThreadPoolExecutor(1) as threads:
        accepting = threads.submit(maker.accept, "far", LONG_S)
        far = maker.dial(elsewhere, "far", LONG_S), accepting.result(LONG_S)
    assert not is_shared(far)
    message, buffer = random_bytes(SIZE), torch.zeros(SIZE, dtype=torch.uint8)
    pending = far[0].recv(buffer)
    far[1].send(message).wait(LONG_S)
    pending.wait(LONG_S)
    assert torch.equal(message, buffer)
    for link in (near, far):
        close(link)
    maker.close()


@pytest.mark.parametrize(
    ("of_p", "of_d", "expected"),
    [
        ("auto", "auto", True),
        ("auto", "shm", True),
        ("shm", "auto", True),
        ("shm", "shm", True),
        ("auto", "gloo", False),
        ("gloo", "auto", False),
    ],
)
def test_the_setting_of_either_side_forces_or_forbids_shared_memory(
    of_p: Backend, of_d: Backend, expected: bool
) -> None:
    p, d = (make_links(backend, host="127.0.0.1", device="cpu") for backend in (of_p, of_d))
    link = join(p, dialer=d)
    assert is_shared(link) == expected
    close(link)
    for maker in (p, d):
        maker.close()


@pytest.mark.parametrize(("of_p", "of_d"), [("shm", "gloo"), ("gloo", "shm")])
def test_sides_whose_settings_contradict_make_no_link(of_p: Backend, of_d: Backend) -> None:
    p, d = (make_links(backend, host="127.0.0.1", device="cpu") for backend in (of_p, of_d))
    with pytest.raises(TransferError) as error:
        d.dial(p.host(), NAME, LONG_S)
    assert error.value.reason == "incompatible"
    for maker in (p, d):
        maker.close()


def test_a_system_without_shared_memory_takes_the_network(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(size_bytes: int) -> None:
        raise PermissionError("not here")

    monkeypatch.setattr("kv_transfer.shared_link.create_shared", refuse)
    maker = make_links("auto", host="127.0.0.1", device="cpu")
    assert maker.host().local == ""
    link = join(maker)
    assert not is_shared(link)
    close(link)
    maker.close()


# What stays behind


def _share_and_wait(commands: Connection, rendezvous: Rendezvous) -> None:
    """A D process that has joined a link and taken what is shared."""
    link = SharedLinkMaker().dial(rendezvous, NAME, LONG_S)
    memory = link.share(SIZE, LONG_S)
    assert memory is not None
    link.recv(memory[:1])
    commands.send("joined")
    commands.recv()


def test_a_killed_peer_leaves_nothing_behind(maker: SharedLinkMaker) -> None:
    before = set(os.listdir("/dev/shm"))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kv_transfer.service", "kv_transfer.receiver"])
    ours, theirs = context.Pipe()
    process = context.Process(target=_share_and_wait, args=(theirs, maker.host()))
    process.start()
    link = maker.accept(NAME, LONG_S)
    memory = link.share(SIZE, LONG_S)
    assert memory is not None and ours.poll(LONG_S) and process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    link.send(memory[:1]).wait(LONG_S)  # was awaited before
    with pytest.raises(TransferError) as error:
        link.send(memory[1:2]).wait(LONG_S)
    assert error.value.reason == "peer_lost"
    process.join(LONG_S)
    link.close()
    del memory, link, error
    assert num_mappings() == 0
    assert set(os.listdir("/dev/shm")) <= before


def num_mappings() -> int:
    gc.collect()
    return Path("/proc/self/maps").read_text().count("memfd:tandem-kv")


def test_fifty_links_leave_no_descriptor_and_no_memory(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    network = link_maker("secure", new_certificates(tmp_path))
    maker = NearestLinkMaker(SharedLinkMaker(), network)
    close(join(maker))  # leaves both ports open
    before = descriptors()
    for number in range(50):
        link = join(maker, f"{number}")
        for memory in shared(link):
            memory.fill_(number)
        if number % 2:
            link[0].abort()
        close(link)
        del memory
    assert num_mappings() == 0
    deadline = time.monotonic() + LONG_S
    while descriptors() > before:  # the network's waits end in threads of their own
        assert time.monotonic() < deadline, "descriptors are left"
    maker.close()
