"""KV between groups of any sizes: every rank gets the bytes of its heads, or the pull fails."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import torch
from fakes_certificates import new_certificates
from fakes_kv_links import link_maker
from fakes_kv_peers import (
    FIRST_TOKENS,
    LONG_S,
    DecodePeer,
    PrefillPeer,
    random_storage,
    transfer_config,
)
from fakes_kv_ranks import RankThreads

from core.faults import make_faults
from core.kv_spec import KVGroup, KVSpec
from kv_cache.storage import KVStorage
from kv_transfer.connection_maker import send_at_once
from kv_transfer.events import BlocksArrived, LeaseEnded, LeaseOutcome
from kv_transfer.faulty_link import FaultyLinkMaker
from kv_transfer.link import LinkMaker
from kv_transfer.memory_link import MemoryLinkMaker

HEADS3 = KVSpec((KVGroup(num_layers=2, num_kv_heads=3, head_dim=4),), block_size=4, dtype="float32")
SOURCE, TARGET = [5, 0, 9, 33, 2, 7, 60], [1, 2, 40, 4, 6, 5, 11]
"""Messages are two blocks where no head travels twice: so four of them, twice the slots."""


@dataclass
class Pair:
    """A P and a D of several ranks each."""

    model: KVStorage
    prefill: RankThreads
    decode: RankThreads
    p: PrefillPeer
    d: DecodePeer

    def pull(self, transfer_id: str) -> None:
        self.d.receiver.pull(self.p.offer(transfer_id, len(SOURCE)), 0)

    def grant(self, transfer_id: str) -> None:
        self.p.sender.grant(transfer_id, 0, SOURCE)
        self.p.sender.close(transfer_id, FIRST_TOKENS)

    def check(self) -> None:
        """Every D rank has the bytes of its heads."""
        self.decode.flush()
        for rank, storage in enumerate(self.decode.storages):
            expected = self.model.pack(SOURCE, self.decode.slice_of(rank))
            assert torch.equal(storage.pack(TARGET), expected), f"rank {rank}"

    def stop(self) -> None:
        for each in (self.d, self.p, self.decode, self.prefill):
            each.stop()
        ports = [*self.prefill.ports, *self.decode.ports]
        until(lambda: not any(port.num_links for port in ports))


def until(condition: Callable[[], bool]) -> None:
    """For what other threads are about to do."""
    never = threading.Event()
    for _ in range(round(LONG_S / 0.005)):
        if condition():
            return
        never.wait(0.005)
    raise AssertionError("it never came to that")


MakePair = Callable[..., Pair]


@pytest.fixture
def make_pair() -> Iterator[MakePair]:
    made: list[Pair] = []

    def make(
        prefill_ranks: int,
        decode_ranks: int,
        make_links: Callable[[], LinkMaker],
        *,
        decode_links: Callable[[], LinkMaker] | None = None,
        spec: KVSpec = HEADS3,
        **changes: object,
    ) -> Pair:
        config = transfer_config(**{"max_message_bytes": 2 * spec.bytes_per_block, **changes})
        model = random_storage(7, spec)
        prefill = RankThreads(prefill_ranks, model, make_links, filled=True)
        decode = RankThreads(decode_ranks, model, decode_links or make_links, filled=False)
        p = PrefillPeer(make_links(), config, group=prefill)
        d = DecodePeer(make_links(), config, group=decode)
        made.append(Pair(model, prefill, decode, p, d))
        return made[-1]

    yield make
    for pair in made:
        pair.stop()


@pytest.mark.parametrize(("prefill_ranks", "decode_ranks"), [(1, 2), (2, 1), (2, 2), (3, 2)])
def test_ranks_wait_for_each_other_in_one_order_where_little_is_buffered(
    make_pair: MakePair, monkeypatch: pytest.MonkeyPatch, prefill_ranks: int, decode_ranks: int
) -> None:
    """A TCP link moves messages only while they are waited for."""

    def buffer_little(connection: socket.socket) -> None:
        send_at_once(connection)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, option, 32768)

    monkeypatch.setattr("kv_transfer.tcp_link.send_at_once", buffer_little)
    large = KVSpec((KVGroup(num_layers=2, num_kv_heads=3, head_dim=4096),), 4, "float32")
    pair = make_pair(prefill_ranks, decode_ranks, lambda: link_maker("tcp"), spec=large)
    pair.pull("t")
    pair.grant("t")
    assert pair.d.receive(TARGET).first_tokens == FIRST_TOKENS
    pair.check()


def shared(maker: LinkMaker) -> Callable[[], LinkMaker]:
    """Memory links meet in one maker."""
    return lambda: maker


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize("decode_ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("prefill_ranks", [1, 2, 3, 4])
def test_every_rank_gets_its_heads_from_a_group_of_any_size(
    make_pair: MakePair, prefill_ranks: int, decode_ranks: int, verify: bool
) -> None:
    """Three heads: uneven shares, and copies where ranks outnumber them."""
    links = shared(MemoryLinkMaker())
    pair = make_pair(prefill_ranks, decode_ranks, links, verify=verify)
    for transfer_id in ("first", "second"):
        pair.pull(transfer_id)
        pair.grant(transfer_id)
        assert pair.d.receive(TARGET).first_tokens == FIRST_TOKENS
        assert pair.p.inbox.take(LeaseEnded) == LeaseEnded(transfer_id, LeaseOutcome.COMPLETED)
    pair.check()
    sent, received = pair.p.stats.totals(), pair.d.stats.totals()
    assert sent.num_bytes == received.num_bytes > 0


@pytest.mark.parametrize("kind", ["gloo", "tcp", "secure", "shared", "nearest"])
@pytest.mark.parametrize(("prefill_ranks", "decode_ranks"), [(2, 1), (1, 2), (2, 3)])
def test_groups_meet_over_real_links(
    make_pair: MakePair, prefill_ranks: int, decode_ranks: int, kind: str, tmp_path: Path
) -> None:
    """Each rank of P waits at a port of its own."""
    make = partial(link_maker, kind, new_certificates(tmp_path))
    pair = make_pair(prefill_ranks, decode_ranks, make, verify=True)
    pair.pull("t")
    pair.grant("t")
    pair.d.receive(TARGET)
    pair.check()


@pytest.mark.parametrize("kind", ["memory", "shared"])
def test_a_slot_is_not_overwritten_before_every_rank_has_unpacked_it(
    make_pair: MakePair, kind: str
) -> None:
    """D's leader is ahead of its ranks: it acknowledges while their plans are still on the way."""
    make = partial(link_maker, kind)
    pair = make_pair(1, 2, shared(make()) if kind == "memory" else make)
    pair.decode.may_plan.clear()
    pair.pull("t")
    pair.grant("t")
    for arrived in [pair.d.inbox.take(BlocksArrived) for _ in range(2)]:
        pair.d.unpack(arrived, TARGET)
    until(lambda: pair.p.stats.totals().num_messages >= 3)
    assert pair.d.inbox.is_empty(), "the next messages have no slots on rank 1"
    pair.decode.may_plan.set()
    pair.d.receive(TARGET)
    pair.check()


def test_blocks_are_packed_when_every_rank_has_computed_them(make_pair: MakePair) -> None:
    """P's leader may end a step before its ranks do, where no row is sampled, and grants blocks."""
    pair = make_pair(2, 1, shared(MemoryLinkMaker()), verify=True)
    rank = pair.prefill.storages[1]
    computed = rank.pack(SOURCE)
    rank.unpack(SOURCE, torch.zeros_like(computed))
    pair.prefill.may_plan.clear()
    pair.prefill.plan(lambda: rank.unpack(SOURCE, computed))
    pair.pull("t")
    pair.grant("t")
    until(lambda: bool(pair.prefill.ports[0].num_links))
    with pytest.raises(queue.Empty):
        pair.d.inbox.take(BlocksArrived, timeout_s=0.2)  # long for a rank that does not wait
    pair.prefill.may_plan.set()
    pair.d.receive(TARGET)
    pair.check()


def test_what_has_arrived_is_unpacked_everywhere_though_its_link_has_failed(
    make_pair: MakePair,
) -> None:
    """The blocks may be the last of a pull that is complete by then."""
    links = MemoryLinkMaker()
    pair = make_pair(2, 2, shared(links), max_message_bytes=16 * HEADS3.bytes_per_block)
    pair.pull("t")
    pair.grant("t")
    arrived = pair.d.inbox.take(BlocksArrived)
    links.break_links()
    pair.p.sender.stop(LONG_S)
    pair.d.stop_receiving()
    assert pair.decode.ports[0].num_links == 1
    pair.d.unpack(arrived, TARGET)
    pair.check()
    until(lambda: pair.decode.ports[0].num_links == 0)


def test_what_nobody_wants_is_thrown_away_on_every_rank(make_pair: MakePair) -> None:
    pair = make_pair(2, 2, shared(MemoryLinkMaker()))
    pair.pull("unwanted")
    pair.p.sender.grant("unwanted", 0, SOURCE[:2])
    pair.d.inbox.take(BlocksArrived).release()
    pair.d.receiver.abort("unwanted")
    assert pair.p.inbox.take(LeaseEnded).outcome is LeaseOutcome.ABORTED
    pair.pull("wanted")
    pair.grant("wanted")
    pair.d.receive(TARGET)
    pair.check()


@pytest.mark.parametrize("side", ["prefill", "decode"])
def test_a_rank_that_is_lost_fails_the_pulls_and_leases_of_its_links(
    make_pair: MakePair, side: str
) -> None:
    links = MemoryLinkMaker()
    pair = make_pair(2, 2, shared(links))
    pair.pull("t")
    links.pause()
    pair.grant("t")
    assert links.wait_under_way(1, LONG_S)
    lost = pair.prefill if side == "prefill" else pair.decode
    lost.ports[0].close()
    links.resume()
    assert pair.d.fail().reason == "peer_lost"
    assert pair.p.inbox.take(LeaseEnded) == LeaseEnded("t", LeaseOutcome.PEER_LOST)
    assert pair.p.sender.num_leases == 0


def test_bytes_corrupted_on_the_way_to_another_rank_are_never_unpacked(
    make_pair: MakePair,
) -> None:
    links = MemoryLinkMaker()
    faults = make_faults("kv_recv:corrupt:once", seed=0, worker_id="decode-0")
    assert faults is not None
    faulty = FaultyLinkMaker(links, faults)
    pair = make_pair(2, 2, shared(links), decode_links=shared(faulty), verify=True)
    pair.pull("t")
    pair.grant("t")
    assert pair.d.fail().reason == "corrupt"
    pair.pull("again")
    pair.grant("again")
    pair.d.receive(TARGET)
    pair.check()


def test_a_stranger_gets_no_share_of_a_link(make_pair: MakePair) -> None:
    pair = make_pair(1, 2, shared(MemoryLinkMaker()))
    with socket.create_connection(("127.0.0.1", pair.decode.ports[0].port), LONG_S) as stranger:
        stranger.sendall(bytes(32))
        assert stranger.recv(1) == b""
    assert pair.decode.ports[0].num_links == 0
