"""Which way KV takes: shared memory within a machine, the network elsewhere, or as it is set."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fakes_certificates import new_certificates
from fakes_kv_links import (
    NAME,
    SIZE,
    close,
    is_shared,
    join,
    link_maker,
    random_bytes,
)
from fakes_kv_peers import LONG_S

from core.errors import TransferError
from kv_transfer.backend import Backend, make_links
from kv_transfer.nearest_link import NearestLinkMaker
from kv_transfer.shared_link import SharedLinkMaker


@pytest.mark.parametrize("network", ["gloo", "tcp", "secure"])
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
        ("auto", "tcp", False),
        ("tcp", "auto", False),
        ("gloo", "gloo", False),
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


@pytest.mark.parametrize(
    ("of_p", "of_d"),
    [("shm", "tcp"), ("tcp", "shm"), ("auto", "gloo"), ("gloo", "auto"), ("tcp", "gloo")],
)
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
