"""The rules of data links, which all kinds keep: the in-memory twin, gloo, TCP, TLS, shared."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from fakes_certificates import certificates_in, new_certificates
from fakes_kv_links import link_maker, put
from fakes_kv_peers import LONG_S

from core.config import TlsConfig
from core.errors import ConfigError, TransferError
from kv_transfer.backend import Backend, make_links
from kv_transfer.link import DataLink, LinkMaker, Rendezvous

BIG = 8 * 1024 * 1024
"""More than sockets buffer, so that a send needs its receive."""

KINDS = ["memory", "gloo", "tcp", "secure", "shared", "nearest"]
BETWEEN_PROCESSES = KINDS[1:]


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> TlsConfig:
    return new_certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tls: TlsConfig) -> Callable[[], LinkMaker]:
    return lambda: link_maker(request.param, tls)


@pytest.fixture
def pair(make: Callable[[], LinkMaker]) -> Iterator[tuple[DataLink, DataLink]]:
    """P's and D's end of a link, and P's process still listening."""
    maker = make()
    with ThreadPoolExecutor(1) as threads:
        accepting = threads.submit(maker.accept, "name", LONG_S)
        receiving = maker.dial(maker.host(), "name", LONG_S)
        sending = accepting.result(LONG_S)
    yield sending, receiving
    sending.close()
    receiving.close()
    maker.close()


Pair = tuple[DataLink, DataLink]


def _blocked(wait: Callable[[], None]) -> tuple[threading.Thread, list[TransferError]]:
    """Waits in a thread; returns it, and where its error will be."""
    errors: list[TransferError] = []

    def run() -> None:
        try:
            wait()
        except TransferError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, errors


def test_messages_arrive_in_order_and_whole(pair: Pair) -> None:
    sending, receiving = pair
    sent = put(sending, *(torch.rand(n, 3) for n in (1, 7, 1000, 2)))
    buffers = [torch.zeros_like(message) for message in sent]
    receives = [receiving.recv(buffer) for buffer in buffers]
    sends = [sending.send(message) for message in sent]
    for pending in (*sends, *receives):
        pending.wait(LONG_S)
    assert all(torch.equal(a, b) for a, b in zip(sent, buffers, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_no_element_type_matters_on_the_wire(pair: Pair, dtype: torch.dtype) -> None:
    sending, receiving = pair
    (message,) = put(sending, torch.randn(5, 4).to(dtype))
    buffer = torch.zeros_like(message)
    pending = receiving.recv(buffer)
    sending.send(message).wait(LONG_S)
    pending.wait(LONG_S)
    assert torch.equal(message, buffer)


def test_a_receive_that_times_out_kills_the_link(pair: Pair) -> None:
    sending, receiving = pair
    with pytest.raises(TransferError) as error:
        receiving.recv(torch.zeros(4)).wait(0.01)
    assert error.value.reason == "timeout"
    with pytest.raises(TransferError):
        receiving.recv(torch.zeros(4)).wait(LONG_S)
    with pytest.raises(TransferError):
        sending.send(*put(sending, torch.zeros(BIG // 4))).wait(LONG_S)


def test_a_send_that_nobody_receives_times_out(pair: Pair) -> None:
    (message,) = put(pair[0], torch.zeros(BIG // 4))
    with pytest.raises(TransferError) as error:
        pair[0].send(message).wait(0.05)
    assert error.value.reason == "timeout"


def test_an_abort_wakes_the_threads_that_wait_on_either_end(pair: Pair) -> None:
    sending, receiving = pair
    receive = receiving.recv(torch.zeros(4))
    thread, errors = _blocked(lambda: receive.wait(LONG_S))
    back = sending.recv(torch.zeros(4))
    peer_thread, peer_errors = _blocked(lambda: back.wait(LONG_S))
    receiving.abort()
    receiving.abort()
    thread.join(LONG_S)
    peer_thread.join(LONG_S)
    assert len(errors) == len(peer_errors) == 1


def test_closing_one_end_fails_the_waits_of_the_other(pair: Pair) -> None:
    sending, receiving = pair
    pending = receiving.recv(torch.zeros(4))
    sending.close()
    with pytest.raises(TransferError) as error:
        pending.wait(LONG_S)
    assert error.value.reason == "peer_lost"


def test_a_link_that_nobody_joins_is_not_made(make: Callable[[], LinkMaker]) -> None:
    maker = make()
    with pytest.raises(TransferError) as error:
        maker.accept("alone", 0.05)
    assert error.value.reason == "timeout"
    maker.close()


def test_a_link_that_is_given_up_while_it_is_made_fails_at_once(
    make: Callable[[], LinkMaker],
) -> None:
    maker = make()
    maker.host()
    with ThreadPoolExecutor(1) as threads:
        accepting = threads.submit(maker.accept, "given up", LONG_S)
        maker.abandon("given up")
        error = accepting.exception(LONG_S / 2)
    assert isinstance(error, TransferError) and error.reason == "peer_lost"
    maker.close()


def test_ends_of_different_backends_are_never_joined(make: Callable[[], LinkMaker]) -> None:
    with pytest.raises(TransferError) as error:
        make().dial(Rendezvous("127.0.0.1", 1, "nccl"), "name", LONG_S)
    assert error.value.reason == "incompatible"


@pytest.mark.parametrize("make", BETWEEN_PROCESSES, indirect=True)
def test_links_are_made_side_by_side(make: Callable[[], LinkMaker]) -> None:
    """A link whose peer is late doesn't hold the next one up."""
    maker = make()
    with ThreadPoolExecutor(3) as threads:
        late = threads.submit(maker.accept, "late", LONG_S)
        accepting = threads.submit(maker.accept, "next", LONG_S)
        made = [maker.dial(maker.host(), "next", LONG_S), accepting.result(LONG_S)]
        assert not late.done()
        made += [maker.dial(maker.host(), "late", LONG_S), late.result(LONG_S)]
    for link in made:
        link.close()
    maker.close()


def _dial_and_wait(commands: Connection, kind: str, tls: TlsConfig, rendezvous: Rendezvous) -> None:
    """A D process that joins a link and then only says so."""
    link = link_maker(kind, tls).dial(rendezvous, "link", LONG_S)
    commands.send("joined")
    commands.recv()
    link.close()


@pytest.mark.parametrize("kind", BETWEEN_PROCESSES)
@pytest.mark.parametrize(
    ("number", "timeout_s", "reason"),
    [(signal.SIGKILL, LONG_S, "peer_lost"), (signal.SIGSTOP, 0.5, "timeout")],
)
def test_a_send_to_a_process_that_dies_or_stops_fails(
    number: signal.Signals, timeout_s: float, reason: str, kind: str, tls: TlsConfig
) -> None:
    maker = link_maker(kind, tls)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kv_transfer.service", "kv_transfer.receiver"])
    ours, theirs = context.Pipe()
    process = context.Process(target=_dial_and_wait, args=(theirs, kind, tls, maker.host()))
    process.start()
    link = maker.accept("link", LONG_S)
    assert ours.poll(LONG_S) and process.pid is not None
    (message,) = put(link, torch.zeros(BIG))
    os.kill(process.pid, number)
    with pytest.raises(TransferError) as error:
        link.send(message).wait(timeout_s)
    assert error.value.reason == reason
    link.close()
    maker.close()
    process.kill()
    process.join(LONG_S)


def test_where_there_are_certificates_links_are_tls_unless_told_otherwise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    certificates = certificates_in(new_certificates(tmp_path))
    chosen: list[tuple[Backend, str]] = [("auto", "tls"), ("gloo", "gloo"), ("tcp", "tcp")]
    for backend, expected in chosen:
        maker = make_links(backend, host="127.0.0.1", device="cpu", certificates=certificates)
        assert maker.host().backend == expected
        assert ("not protected" in caplog.text) == (expected != "tls")
        maker.close()


def test_the_backend_follows_the_device_of_the_kv() -> None:
    maker = make_links("auto", host="127.0.0.1", device="cpu")
    assert maker.host().backend == "tcp"
    maker.close()


@pytest.mark.parametrize("backend", ["memory", "nccl"])
def test_backends_that_cannot_work_here_are_refused_by_name(backend: Backend) -> None:
    with pytest.raises(ConfigError, match=backend):
        make_links(backend, host="127.0.0.1", device="cpu")
