"""Messages of several parts: large blocks, so that a few of them are more than one part."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from fakes_kv_links import link_maker
from fakes_kv_peers import FIRST_TOKENS, LONG_S, DecodePeer, PrefillPeer, transfer_config

from core.kv_spec import KVGroup, KVSpec
from kv_transfer.events import BlocksArrived, LeaseEnded, LeaseOutcome
from kv_transfer.layout import plan_routes
from kv_transfer.link import LinkMaker
from kv_transfer.link_plan import LinkPlan
from kv_transfer.memory_link import MemoryLinkMaker
from kv_transfer.parts import parts_of
from kv_transfer.staging import BlockFormat, StagingLimits

SPEC = KVSpec((KVGroup(num_layers=4, num_kv_heads=2, head_dim=512),), 16, "float32")
"""Half a MiB a block."""
MESSAGE_BLOCKS = 5

MakePair = Callable[..., tuple[PrefillPeer, DecodePeer]]


@pytest.fixture(autouse=True)
def parts_of_two_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kv_transfer.parts.PART_BYTES", 2 * SPEC.bytes_per_block)


@pytest.fixture
def make_pair() -> Iterator[MakePair]:
    made: list[PrefillPeer | DecodePeer] = []

    def make(maker: LinkMaker, **changes: object) -> tuple[PrefillPeer, DecodePeer]:
        size = MESSAGE_BLOCKS * SPEC.bytes_per_block
        config = transfer_config(max_message_bytes=size, **changes)
        p, d = PrefillPeer(maker, config, spec=SPEC), DecodePeer(maker, config, spec=SPEC)
        made.extend((d, p))
        return p, d

    yield make
    for peer in made:
        peer.stop()


def _plan(decode_heads: list[list[int]], num_blocks: int) -> list[range]:
    p = PrefillPeer(MemoryLinkMaker(), transfer_config(), spec=SPEC)
    try:
        limits = StagingLimits(2**24, 2)
        plan = LinkPlan.of(plan_routes([[0, 1]], decode_heads), BlockFormat.of(p.storage), limits)
        return parts_of(plan, num_blocks)
    finally:
        p.stop()


def test_the_parts_of_a_message_are_all_its_blocks_in_order() -> None:
    assert _plan([[0, 1]], 5) == [range(2), range(2, 4), range(4, 5)]
    assert _plan([[0, 1]], 2) == [range(2)]
    assert _plan([[0], [1]], 5) == [range(5)], "several data links carry it whole"


@pytest.mark.parametrize("kind", ["memory", "gloo", "tcp", "nearest"])
@pytest.mark.parametrize("verify", [False, True])
def test_blocks_arrive_as_they_were_in_messages_of_any_number_of_parts(
    make_pair: MakePair, kind: str, verify: bool
) -> None:
    p, d = make_pair(link_maker(kind), verify=verify)
    for num_blocks in (1, 2, 3, 5, 6, 23):
        transfer_id, source = f"t{num_blocks}", list(range(num_blocks, 0, -1))
        target = list(range(30, 30 + num_blocks))
        d.receiver.pull(p.offer(transfer_id, num_blocks), 0)
        p.sender.grant(transfer_id, 0, source)
        p.sender.close(transfer_id, FIRST_TOKENS)
        d.receive(target)
        assert torch.equal(p.storage.pack(source), d.storage.pack(target))
        assert p.inbox.take(LeaseEnded) == LeaseEnded(transfer_id, LeaseOutcome.COMPLETED)
    assert p.stats.totals().num_messages == d.stats.totals().num_messages == 11
    assert p.stats.totals().num_bytes == d.stats.totals().num_bytes == 40 * SPEC.bytes_per_block


def test_a_slot_is_acknowledged_with_the_last_of_its_parts(make_pair: MakePair) -> None:
    p, d = make_pair(MemoryLinkMaker(), max_inflight_messages=1)
    d.receiver.pull(p.offer("t", 6), 0)
    p.sender.grant("t", 0, list(range(6)))
    p.sender.close("t", FIRST_TOKENS)
    parts = [d.inbox.take(BlocksArrived) for _ in range(3)]
    assert [(part.first_block, part.num_blocks) for part in parts] == [(0, 2), (2, 2), (4, 1)]
    for part in reversed(parts[1:]):
        part.release()
        part.release()
    assert d.stats.totals().num_messages == 1 and d.inbox.is_empty()
    d.unpack(parts[0], list(range(6)))
    d.receive(list(range(6)))
    assert torch.equal(p.storage.pack([0, 1, 5]), d.storage.pack([0, 1, 5]))


def test_an_abort_between_parts_leaves_the_link_in_order(make_pair: MakePair) -> None:
    """All that was announced still comes, and is thrown away."""
    links = MemoryLinkMaker()
    p, d = make_pair(links)
    d.receiver.pull(p.offer("first", 10), 0)
    links.pause()
    p.sender.grant("first", 0, list(range(10)))
    assert links.wait_under_way(6, LONG_S)
    d.receiver.abort("first")
    assert p.inbox.take(LeaseEnded) == LeaseEnded("first", LeaseOutcome.ABORTED)
    d.receiver.pull(p.offer("second", 7), 0)
    p.sender.grant("second", 0, list(range(20, 27)))
    p.sender.close("second", FIRST_TOKENS)
    links.resume()
    assert d.receive(list(range(7))).transfer_id == "second"
    assert torch.equal(p.storage.pack(list(range(20, 27))), d.storage.pack(list(range(7))))
    assert d.inbox.is_empty()


def test_a_lease_that_ends_with_messages_owed_frees_its_blocks_and_keeps_the_link(
    make_pair: MakePair,
) -> None:
    """P gives it up while nothing is acknowledged; the next transfer is right."""
    p, d = make_pair(MemoryLinkMaker(), max_inflight_messages=2)
    d.receiver.pull(p.offer("given up", 15), 0)
    p.sender.grant("given up", 0, list(range(15)))
    held = d.inbox.take(BlocksArrived)
    p.sender.cancel("given up")
    assert p.inbox.take(LeaseEnded).outcome is LeaseOutcome.CANCELLED
    held.release()
    assert d.fail().reason == "aborted"
    d.receiver.pull(p.offer("next", 7), 0)
    p.sender.grant("next", 0, list(range(20, 27)))
    p.sender.close("next", FIRST_TOKENS)
    assert d.receive(list(range(7))).transfer_id == "next"
    assert torch.equal(p.storage.pack(list(range(20, 27))), d.storage.pack(list(range(7))))
