"""Whoever connects to the data ports of links over TLS without being their peer."""

from __future__ import annotations

import contextlib
import shutil
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from fakes_certificates import certificates_in, new_certificates
from fakes_kv_links import heard_by_stranger
from fakes_kv_peers import LONG_S

from core.config import TlsConfig
from core.errors import TransferError
from kv_transfer.link import DataLink
from kv_transfer.link_port import MAX_GREETINGS, digest
from kv_transfer.secure_link import SecureLinkMaker

NAME = "a secret token/link/0"


@pytest.fixture
def tls(tmp_path: Path) -> TlsConfig:
    return new_certificates(tmp_path / "ours")


@pytest.fixture
def maker(tls: TlsConfig) -> Iterator[SecureLinkMaker]:
    made = SecureLinkMaker(host="127.0.0.1", certificates=certificates_in(tls))
    yield made
    made.close()


def address(maker: SecureLinkMaker) -> tuple[str, int]:
    at = maker.host()
    return at.host, at.port


def join(maker: SecureLinkMaker, name: str = NAME) -> tuple[DataLink, DataLink]:
    with ThreadPoolExecutor(1) as threads:
        accepting = threads.submit(maker.accept, name, LONG_S)
        receiving = maker.dial(maker.host(), name, LONG_S)
        return accepting.result(LONG_S), receiving


def transfer(link: tuple[DataLink, DataLink]) -> None:
    """A message arrives as it was sent."""
    sending, receiving = link
    message = torch.randint(256, (100_000,), dtype=torch.uint8)
    buffer = torch.zeros_like(message)
    pending = receiving.recv(buffer)
    sending.send(message).wait(LONG_S)
    pending.wait(LONG_S)
    assert torch.equal(message, buffer)


def end(link: tuple[DataLink, DataLink]) -> None:
    for side in link:
        side.close()


@pytest.mark.parametrize(
    "words",
    [
        b"",
        digest(NAME),
        (1).to_bytes(8, "little"),  # what gloo takes for a peer's greeting
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(range(256)) * 400,
    ],
    ids=["nothing", "the digest in the clear", "a number", "http", "noise"],
)
def test_who_speaks_no_tls_hears_nothing_of_a_link_and_stops_none(
    maker: SecureLinkMaker, words: bytes
) -> None:
    link = join(maker)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(maker.accept, "another", LONG_S)
        heard = heard_by_stranger(address(maker), words)
        assert len(heard) < 16, "an alert of TLS at most"
        transfer(link)
        assert not waiting.done(), "the stranger is not taken for the peer"
        peer = maker.dial(maker.host(), "another", LONG_S)
        late = (waiting.result(LONG_S), peer)
    transfer(late)
    end(link)
    end(late)


@pytest.mark.parametrize("has_certificate", [False, True], ids=["none", "foreign"])
def test_who_has_no_certificate_of_the_authority_is_cut_off_even_with_the_token(
    maker: SecureLinkMaker, tls: TlsConfig, tmp_path: Path, has_certificate: bool
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(tls.ca)
    if has_certificate:
        foreign = new_certificates(tmp_path / "foreign")
        assert foreign.certificate
        context.load_cert_chain(foreign.certificate, foreign.key)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(maker.accept, NAME, LONG_S)
        raw = socket.create_connection(address(maker), LONG_S)
        with context.wrap_socket(raw, server_hostname="tandem") as stranger, pytest.raises(OSError):
            stranger.sendall(digest(NAME))
            stranger.recv(1)
            raise ConnectionError("it was closed without a word")
        assert not waiting.done()
        peer = maker.dial(maker.host(), NAME, LONG_S)
        link = (waiting.result(LONG_S), peer)
    transfer(link)
    end(link)


def test_a_node_of_the_cluster_without_the_token_joins_no_link(
    maker: SecureLinkMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = join(maker)
    monkeypatch.setattr("kv_transfer.link_port.GREETING_TIMEOUT_S", 0.5)
    with pytest.raises(TransferError, match="does not wait for this link") as error:
        maker.dial(maker.host(), "a guessed token/link/0", LONG_S)
    assert error.value.reason == "peer_lost"
    with pytest.raises(TransferError):  # nor is there a second peer of one link
        maker.dial(maker.host(), NAME, LONG_S)
    transfer(link)
    end(link)


def test_a_crowd_that_connects_and_says_nothing_holds_no_link_up(maker: SecureLinkMaker) -> None:
    with contextlib.ExitStack() as crowd:
        for _ in range(2 * MAX_GREETINGS):
            crowd.enter_context(socket.create_connection(address(maker), LONG_S))
        link = join(maker)
        transfer(link)
    end(link)


def test_nobody_sends_kv_to_where_another_authority_answers(
    maker: SecureLinkMaker, tmp_path: Path
) -> None:
    tls = new_certificates(tmp_path / "foreign")
    other = SecureLinkMaker(host="127.0.0.1", certificates=certificates_in(tls))
    with pytest.raises(TransferError, match="not to be trusted") as error:
        maker.dial(other.host(), NAME, LONG_S)
    assert error.value.reason == "incompatible"
    other.close()


def test_new_links_use_certificates_that_were_replaced_and_old_links_live_on(
    maker: SecureLinkMaker, tls: TlsConfig, tmp_path: Path
) -> None:
    old = join(maker)
    new = new_certificates(tmp_path / "new")
    for theirs, ours in ((new.ca, tls.ca), (new.certificate, tls.certificate), (new.key, tls.key)):
        assert theirs and ours
        shutil.copy(theirs, ours)
    link = join(maker, "after")
    transfer(link)
    transfer(old)
    end(old)
    end(link)


def test_a_message_of_another_length_than_agreed_ends_the_link(maker: SecureLinkMaker) -> None:
    sending, receiving = link = join(maker)
    pending = receiving.recv(torch.zeros(100))
    sending.send(torch.zeros(99)).wait(LONG_S)
    with pytest.raises(TransferError) as error:
        pending.wait(LONG_S)
    assert error.value.reason == "corrupt"
    end(link)


def test_a_port_that_cannot_be_had_is_a_transfer_error(tls: TlsConfig) -> None:
    elsewhere = SecureLinkMaker(host="192.0.2.1", certificates=certificates_in(tls))
    with pytest.raises(TransferError, match=r"cannot wait for links at 192\.0\.2\.1"):
        elsewhere.host()
