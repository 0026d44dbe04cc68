"""Whoever connects to the data ports of one machine without being the peer of a link."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import pytest
from fakes_kv_links import (
    NAME,
    close,
)
from fakes_kv_peers import LONG_S

from core.errors import TransferError
from kv_transfer.link import LinkMaker, Rendezvous
from kv_transfer.link_port import digest
from kv_transfer.local_port import _address
from kv_transfer.shared_link import SharedLinkMaker

NOBODY = 65534
"""A user that runs no test."""
CLONE_NEWNET = 0x40000000


@pytest.fixture
def maker() -> Iterator[SharedLinkMaker]:
    made = SharedLinkMaker()
    yield made
    made.close()


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
    def impatient() -> None:
        monkeypatch.setattr("kv_transfer.link_port.GREETING_TIMEOUT_S", 0.1)

    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(maker.accept, NAME, LONG_S)
        impatient()
        assert say(maker, words) == b""
        with pytest.raises(TransferError) as error:
            maker.dial(maker.host(), "a guessed name", LONG_S)
        assert error.value.reason == "peer_lost"
        monkeypatch.undo()  # the peer itself may take its time
        assert not waiting.done()
        link = maker.dial(maker.host(), NAME, LONG_S), waiting.result(LONG_S)
        impatient()
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


# For real only as root; the next test shows the same refusal to everybody.
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


def test_the_token_itself_is_refused_from_another_user(
    maker: SharedLinkMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As P sees it, which here is somebody else than whoever connects."""
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(maker.accept, NAME, LONG_S)
        with monkeypatch.context() as patch:
            patch.setattr("kv_transfer.local_port.os.geteuid", lambda: NOBODY)
            assert say(maker, digest(NAME)) == b""
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
