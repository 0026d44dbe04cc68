"""Links with faults: each ends as its kind does in the world, and the next pull goes well."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, Protocol

import pytest
import torch
from fakes_kv_links import link_maker
from fakes_kv_peers import (
    FIRST_TOKENS,
    LONG_S,
    DecodePeer,
    PrefillPeer,
    transfer_config,
)

from core.faults import FaultPoint, Faults, parse_faults
from kv_transfer.checksum import checksum
from kv_transfer.events import BlocksArrived, LeaseEnded, LeaseOutcome
from kv_transfer.faulty_link import FaultyLinkMaker

SOURCE = [11, 3, 8, 1, 20, 33, 2]
TARGET = [0, 1, 2, 3, 4, 5, 6]
"""Seven blocks: three messages."""


KINDS = ["gloo", "tcp", "nearest"]


class MakePeers(Protocol):
    def __call__(
        self, spec: str, *, verify: tuple[bool, bool] = ..., **changes: Any
    ) -> tuple[PrefillPeer, DecodePeer]: ...


@pytest.fixture(params=KINDS)
def peers(request: pytest.FixtureRequest) -> Iterator[MakePeers]:
    """A P and a D whose faults are of one spec; `verify` is P's and D's setting."""
    made: list[PrefillPeer | DecodePeer] = []

    def make(
        spec: str, *, verify: tuple[bool, bool] = (False, False), **changes: Any
    ) -> tuple[PrefillPeer, DecodePeer]:
        def faults(worker_id: str) -> Faults:
            return Faults(parse_faults(spec), seed=5, worker_id=worker_id)

        def links(faults: Faults) -> FaultyLinkMaker:
            return FaultyLinkMaker(link_maker(request.param), faults)

        of_p, of_d = faults("prefill-0"), faults("decode-0")
        p, d = (
            PrefillPeer(links(of_p), transfer_config(verify=verify[0], **changes), faults=of_p),
            DecodePeer(links(of_d), transfer_config(verify=verify[1], **changes), faults=of_d),
        )
        made.extend((d, p))
        return p, d

    yield make
    for peer in made:
        peer.stop()


def _begin(p: PrefillPeer, d: DecodePeer, transfer_id: str) -> None:
    """A pull of all that P has."""
    d.receiver.pull(p.offer(transfer_id, len(SOURCE)), 0)
    p.sender.grant(transfer_id, 0, SOURCE)
    p.sender.close(transfer_id, FIRST_TOKENS)


def _goes_well(p: PrefillPeer, d: DecodePeer, transfer_id: str) -> None:
    d.storage.unpack(TARGET, torch.zeros_like(d.storage.pack(TARGET)))
    _begin(p, d, transfer_id)
    assert d.receive(TARGET).first_tokens == FIRST_TOKENS
    assert _is_same(p, d)
    assert p.inbox.take(LeaseEnded) == LeaseEnded(transfer_id, LeaseOutcome.COMPLETED)
    assert p.sender.num_leases == 0


def _is_same(p: PrefillPeer, d: DecodePeer) -> bool:
    return torch.equal(p.storage.pack(SOURCE), d.storage.pack(TARGET))


@pytest.mark.parametrize("point", ["kv_pack", "kv_send", "kv_recv", "kv_control"])
def test_what_is_late_but_in_time_is_right(peers: MakePeers, point: str) -> None:
    p, d = peers(f"{point}:delay=0.02:every=2")
    _goes_well(p, d, "late")
    _goes_well(p, d, "later")


@pytest.mark.parametrize(
    "spec",
    [
        "kv_pack:fail:once",
        "kv_send:fail:once",
        "kv_send:fail:after=2:once",
        "kv_recv:fail:after=1:once",
        "kv_control:fail:after=2:once:worker=prefill-0",
        "kv_control:fail:after=2:once:worker=decode-0",
    ],
)
def test_what_fails_ends_the_link_on_both_sides_and_the_next_pull_makes_another(
    peers: MakePeers, spec: str
) -> None:
    """A send that fails to post is one of them."""
    p, d = peers(spec)
    _begin(p, d, "failed")
    assert d.fail().reason == "peer_lost"
    assert p.inbox.take(LeaseEnded) == LeaseEnded("failed", LeaseOutcome.PEER_LOST)
    _goes_well(p, d, "next")


@pytest.mark.parametrize(
    "spec",
    [
        "kv_send:drop:once",
        "kv_send:drop:after=1:once",
        "kv_recv:drop:once",
        "kv_control:drop:after=1:once:worker=prefill-0",
        "kv_control:drop:after=1:once:worker=decode-0",
    ],
)
def test_what_is_lost_is_noticed_by_its_deadline(peers: MakePeers, spec: str) -> None:
    p, d = peers(spec, timeout_s=1.2, lease_s=1.5)
    _begin(p, d, "lost")
    assert d.fail().reason in ("timeout", "peer_lost")
    pull_was_lost = "decode-0" in spec
    outcome = LeaseOutcome.EXPIRED if pull_was_lost else LeaseOutcome.PEER_LOST
    assert p.inbox.take(LeaseEnded) == LeaseEnded("lost", outcome)
    _goes_well(p, d, "next")


CORRUPTING = [
    (kind, spec)
    for kind in KINDS
    for spec in ("kv_send:corrupt:once", "kv_send:truncate:once", "kv_recv:corrupt:once")
    if (kind, spec) != ("tcp", "kv_send:truncate:once")
]


@pytest.mark.parametrize("peers", ["tcp"], indirect=True)
def test_over_tcp_a_truncated_message_ends_the_link(peers: MakePeers) -> None:
    """Its length is told, whoever verifies or doesn't."""
    p, d = peers("kv_send:truncate:once")
    _begin(p, d, "truncated")
    assert d.fail().reason == "corrupt"
    assert p.inbox.take(LeaseEnded).transfer_id == "truncated"
    _goes_well(p, d, "next")


@pytest.mark.parametrize(("peers", "spec"), CORRUPTING, indirect=["peers"])
def test_without_verification_other_bytes_arrive(peers: MakePeers, spec: str) -> None:
    """So that the tests below can fail."""
    p, d = peers(spec)
    d.storage.unpack(TARGET, torch.zeros_like(d.storage.pack(TARGET)))
    _begin(p, d, "corrupted")
    d.receive(TARGET)
    assert not _is_same(p, d)
    assert d.stats.totals().failures == {}


@pytest.mark.parametrize("verify", [(True, True), (True, False), (False, True)], ids=str)
@pytest.mark.parametrize(("peers", "spec"), CORRUPTING, indirect=["peers"])
def test_with_verification_by_either_side_a_corrupted_pull_fails_alone(
    peers: MakePeers, spec: str, verify: tuple[bool, bool]
) -> None:
    p, d = peers(spec, verify=verify)
    before = d.storage.pack(TARGET)
    _begin(p, d, "corrupted")
    failed = d.fail()
    assert (failed.transfer_id, failed.reason) == ("corrupted", "corrupt")
    assert torch.equal(d.storage.pack(TARGET), before), "no block of it was delivered"
    assert p.inbox.take(LeaseEnded).transfer_id == "corrupted"
    assert d.stats.totals().failures == {"corrupt": 1}
    links = set(d.receiver._links.values())
    _goes_well(p, d, "next")
    assert set(d.receiver._links.values()) == links, "the link is sound"


def test_a_corrupted_message_does_not_touch_other_pulls_on_its_link(peers: MakePeers) -> None:
    p, d = peers("kv_send:corrupt:once", verify=(True, True))
    for transfer_id in ("first", "second"):
        d.receiver.pull(p.offer(transfer_id, len(SOURCE)), 0)
    p.sender.grant("first", 0, SOURCE)
    assert d.fail().transfer_id == "first"
    p.sender.grant("second", 0, SOURCE)
    p.sender.close("second", FIRST_TOKENS)
    assert d.receive(TARGET).transfer_id == "second"
    assert _is_same(p, d)
    assert d.inbox.is_empty()


def test_a_lease_ends_at_once_when_its_corrupted_pull_is_given_up(peers: MakePeers) -> None:
    """P hears of it while its prompt is still being computed, and need not go on."""
    p, d = peers("kv_recv:corrupt:once", verify=(True, False))
    d.receiver.pull(p.offer("t", len(SOURCE)), 0)
    p.sender.grant("t", 0, SOURCE[:3])
    assert d.fail().reason == "corrupt"
    assert p.inbox.take(LeaseEnded) == LeaseEnded("t", LeaseOutcome.ABORTED)


def test_any_changed_bit_changes_the_checksum() -> None:
    generator = torch.Generator().manual_seed(1)
    message = torch.randint(256, (2, 3, 2, 1, 40), dtype=torch.uint8, generator=generator)
    right = checksum(message)
    flat = message.view(-1)
    for position in range(0, len(flat), 7):
        for bit in (1, 16, 128):
            flat[position] ^= bit
            assert checksum(message) != right
            flat[position] ^= bit
    assert checksum(message) == right


def test_a_slow_sender_delays_its_own_link_only(
    peers: MakePeers, caplog: pytest.LogCaptureFixture
) -> None:
    """A pull that waits for a slow message is given up; what was late for it is thrown away."""
    caplog.set_level(logging.WARNING)
    p, d = peers("kv_send:delay=0.3:once")
    _begin(p, d, "given up")
    d.receiver.abort("given up")
    while not d.inbox.is_empty():  # what came before, if we were slower than the sender
        d.inbox.take(BlocksArrived).release()
    assert p.inbox.take(LeaseEnded).outcome is LeaseOutcome.ABORTED
    _goes_well(p, d, "next")
    assert "kv_send #1" in caplog.text


def test_faults_count_what_happens_whether_faulty_or_not(peers: MakePeers) -> None:
    p, d = peers("kv_send:fail:after=1000")
    _goes_well(p, d, "one")
    faults = p._faults
    assert faults is not None
    assert faults.num_seen(FaultPoint.KV_SEND) == faults.num_seen(FaultPoint.KV_PACK) == 3


def test_an_aborted_link_does_not_sit_out_the_delay(peers: MakePeers) -> None:
    p, d = peers(f"kv_send:delay={100 * LONG_S}:after=1:once")
    _begin(p, d, "t")
    d.inbox.take(BlocksArrived).release()
    d.stop_receiving()
    assert d.fail().reason == "aborted"
    assert p.inbox.take(LeaseEnded).transfer_id == "t"
