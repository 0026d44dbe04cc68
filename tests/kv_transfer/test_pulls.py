"""Pulls between a real sender and a real receiver, over gRPC and data links of several kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from fakes_kv_links import link_maker
from fakes_kv_peers import (
    FIRST_TOKENS,
    LONG_S,
    NUM_BLOCKS,
    DecodePeer,
    PrefillPeer,
    transfer_config,
)

from kv_transfer.events import BlocksArrived, LeaseEnded, LeaseOutcome, PullClosed, PullNeedless
from kv_transfer.link import LinkMaker
from kv_transfer.memory_link import MemoryLinkMaker


@pytest.fixture
def peers() -> Iterator[Callable[..., tuple[PrefillPeer, DecodePeer]]]:
    """Makes a P and a D with common links, and stops both afterwards."""
    made: list[PrefillPeer | DecodePeer] = []

    def make(
        maker: LinkMaker, *, compat_key: str = "compat", **changes: object
    ) -> tuple[PrefillPeer, DecodePeer]:
        config = transfer_config(**changes)
        p, d = PrefillPeer(maker, config), DecodePeer(maker, config, compat_key=compat_key)
        made.extend((d, p))
        return p, d

    yield make
    for peer in made:
        peer.stop()


Peers = Callable[..., tuple[PrefillPeer, DecodePeer]]


def _same(p: PrefillPeer, source: list[int], d: DecodePeer, target: list[int]) -> bool:
    return torch.equal(p.storage.pack(source), d.storage.pack(target))


def _ended(p: PrefillPeer, transfer_id: str, outcome: LeaseOutcome) -> None:
    assert p.inbox.take(LeaseEnded) == LeaseEnded(transfer_id, outcome)


def _permutation(seed: int, num_blocks: int) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    blocks: list[int] = torch.randperm(NUM_BLOCKS, generator=generator)[:num_blocks].tolist()
    return blocks


@pytest.mark.parametrize("kind", ["memory", "gloo", "tcp", "nearest"])
@pytest.mark.parametrize("overlap", [True, False])
def test_blocks_arrive_as_they_were_whatever_the_chunks_and_what_d_holds(
    peers: Peers, kind: str, overlap: bool
) -> None:
    p, d = peers(link_maker(kind), overlap=overlap)
    cases = [
        (1, 0, 1),
        (3, 0, 3),
        (4, 0, 2),
        (7, 3, 3),
        (9, 2, 5),
        (20, 0, 6),
        (6, 6, 6),
        (5, 9, 1),
    ]
    for number, (num_blocks, num_held, chunk) in enumerate(cases):
        source, target = _permutation(number, num_blocks), _permutation(100 + number, num_blocks)
        transfer_id = f"t{number}"
        before = d.storage.pack(target[:num_held])
        d.receiver.pull(p.offer(transfer_id, num_blocks), num_held)
        for first in range(0, num_blocks, chunk):
            p.sender.grant(transfer_id, first, source[first : first + chunk])
        p.sender.close(transfer_id, FIRST_TOKENS)
        closed = d.receive(target)
        assert closed.transfer_id == transfer_id
        assert closed.first_tokens == FIRST_TOKENS
        assert closed.chunk_end_age_s >= 0
        assert _same(p, source[num_held:], d, target[num_held:])
        assert torch.equal(d.storage.pack(target[:num_held]), before), "held blocks stay untouched"
        _ended(p, transfer_id, LeaseOutcome.COMPLETED)
    assert p.sender.num_leases == 0
    assert d.stats.totals().num_transfers == len(cases)
    assert p.stats.totals().num_bytes == d.stats.totals().num_bytes > 0


def test_a_prompt_computed_before_the_pull_arrives_is_sent_all_the_same(peers: Peers) -> None:
    p, d = peers(MemoryLinkMaker())
    handoff = p.offer("t", 5)
    p.sender.grant("t", 0, [4, 3, 2, 1, 0])
    p.sender.close("t", FIRST_TOKENS)
    d.receiver.pull(handoff, 0)
    d.receive([10, 11, 12, 13, 14])
    assert _same(p, [4, 3, 2, 1, 0], d, [10, 11, 12, 13, 14])


def test_blocks_travel_while_the_prefill_still_runs(peers: Peers) -> None:
    p, d = peers(MemoryLinkMaker())
    d.receiver.pull(p.offer("t", 4), 0)
    p.sender.grant("t", 0, [0, 1])
    arrived = d.inbox.take(BlocksArrived)
    assert (arrived.first_block, arrived.num_blocks) == (0, 2)
    d.unpack(arrived, [0, 1, 2, 3])
    p.sender.grant("t", 2, [2, 3])
    p.sender.close("t", FIRST_TOKENS)
    d.receive([0, 1, 2, 3])


def test_without_overlap_nothing_travels_before_the_close(peers: Peers) -> None:
    p, d = peers(MemoryLinkMaker(), overlap=False)
    d.receiver.pull(p.offer("early", 4), 0)
    p.sender.grant("early", 0, [0, 1, 2, 3])
    d.receiver.pull(p.offer("other", 1), 0)
    p.sender.grant("other", 0, [5])
    p.sender.close("other", FIRST_TOKENS)
    arrived = d.inbox.take(BlocksArrived)
    assert arrived.transfer_id == "other", "the one granted first has not been closed"
    arrived.release()
    assert d.inbox.take(PullClosed).transfer_id == "other"
    p.sender.close("early", FIRST_TOKENS)
    d.receive([0, 1, 2, 3])


def test_blocks_outside_the_window_are_never_sent(peers: Peers) -> None:
    p, d = peers(MemoryLinkMaker())
    d.receiver.pull(p.offer("t", 6, first_block=4), 1)
    p.sender.grant("t", 4, [8, 9])
    p.sender.close("t", FIRST_TOKENS)
    arrived = d.inbox.take(BlocksArrived)
    assert (arrived.first_block, arrived.num_blocks) == (4, 2)
    arrived.release()
    d.inbox.take(PullClosed)


def test_p_sends_no_more_than_the_messages_in_flight_until_d_releases_them(peers: Peers) -> None:
    p, d = peers(MemoryLinkMaker())
    d.receiver.pull(p.offer("t", 12), 0)
    p.sender.grant("t", 0, list(range(12)))
    p.sender.close("t", FIRST_TOKENS)
    held = [d.inbox.take(BlocksArrived), d.inbox.take(BlocksArrived)]
    assert p.stats.totals().num_messages == 2
    for event in reversed(held):  # the second alone acknowledges nothing
        d.unpack(event, list(range(12)))
    d.receive(list(range(12)))
    assert _same(p, list(range(12)), d, list(range(12)))


def test_an_aborted_pull_is_silent_and_the_next_one_on_the_link_is_right(peers: Peers) -> None:
    """CASES 3: messages are late, D aborts and uses the blocks again; nothing old lands in them."""
    links = MemoryLinkMaker()
    p, d = peers(links)
    d.receiver.pull(p.offer("first", 12), 0)
    p.sender.grant("first", 0, list(range(3)))
    d.unpack(d.inbox.take(BlocksArrived), list(range(12)))
    links.pause()
    p.sender.grant("first", 3, list(range(3, 12)))
    assert links.wait_under_way(1, LONG_S)
    d.receiver.abort("first")
    _ended(p, "first", LeaseOutcome.ABORTED)
    d.receiver.pull(p.offer("second", 6), 0)
    p.sender.grant("second", 0, list(range(40, 46)))
    p.sender.close("second", FIRST_TOKENS)
    links.resume()
    assert d.receive(list(range(6))).transfer_id == "second"
    assert _same(p, list(range(40, 46)), d, list(range(6)))
    _ended(p, "second", LeaseOutcome.COMPLETED)
    assert d.inbox.is_empty() and p.inbox.is_empty()


def test_an_abort_while_d_still_holds_staging_ends_the_lease_at_once(peers: Peers) -> None:
    p, d = peers(MemoryLinkMaker())
    d.receiver.pull(p.offer("t", 12), 0)
    p.sender.grant("t", 0, list(range(12)))
    held = [d.inbox.take(BlocksArrived), d.inbox.take(BlocksArrived)]
    d.receiver.abort("t")
    d.receiver.abort("t")
    _ended(p, "t", LeaseOutcome.ABORTED)
    for event in held:
        event.release()
        event.release()
    d.receiver.pull(p.offer("next", 7), 0)
    p.sender.grant("next", 0, list(range(20, 27)))
    p.sender.close("next", FIRST_TOKENS)
    d.receive(list(range(7)))
    assert _same(p, list(range(20, 27)), d, list(range(7)))


def test_a_pull_of_an_unknown_transfer_fails_with_its_reason(peers: Peers) -> None:
    """CASES 9: the two legs name the transfer differently."""
    p, d = peers(MemoryLinkMaker())
    p.offer("one name", 2)
    d.receiver.pull(p.handoff("another name", 2), 0)
    failed = d.fail()
    assert (failed.transfer_id, failed.reason) == ("another name", "unknown_transfer")
    assert d.stats.totals().failures == {"unknown_transfer": 1}
    assert p.sender.num_leases == 1


def test_a_pull_addressed_to_a_former_incarnation_is_refused(peers: Peers) -> None:
    p, d = peers(MemoryLinkMaker())
    d.receiver.pull(replace(p.offer("t", 2), epoch="the former"), 0)
    assert d.fail().reason == "epoch_mismatch"
    d.receiver.pull(p.handoff("t", 2), 0)
    p.sender.grant("t", 0, [1, 2])
    p.sender.close("t", FIRST_TOKENS)
    d.receive([1, 2])


def test_workers_whose_kv_differs_in_kind_are_never_linked(peers: Peers) -> None:
    p, d = peers(MemoryLinkMaker(), compat_key="another model")
    d.receiver.pull(p.offer("t", 2), 0)
    assert d.fail().reason == "incompatible"


def test_a_lease_that_nobody_pulls_expires_once(peers: Peers) -> None:
    p, d = peers(MemoryLinkMaker(), lease_s=0.01)
    handoff = p.offer("t", 2)
    _ended(p, "t", LeaseOutcome.EXPIRED)
    d.receiver.pull(handoff, 0)
    assert d.fail().reason == "lease_expired"
    assert p.inbox.is_empty()


def test_a_pull_outlives_the_grace_of_its_lease(peers: Peers) -> None:
    """The grace is for leases that nobody pulls: another one expires while this one is pulled."""
    p, d = peers(MemoryLinkMaker(), lease_s=3.0)
    d.receiver.pull(p.offer("pulled", 4), 0)
    p.sender.grant("pulled", 0, [0])
    d.unpack(d.inbox.take(BlocksArrived), [0, 1, 2, 3])
    p.offer("forgotten", 4)
    _ended(p, "forgotten", LeaseOutcome.EXPIRED)
    p.sender.grant("pulled", 1, [1, 2, 3])
    p.sender.close("pulled", FIRST_TOKENS)
    d.receive([0, 1, 2, 3])
    _ended(p, "pulled", LeaseOutcome.COMPLETED)


def test_a_pull_whose_request_deadline_passes_fails_on_both_sides(peers: Peers) -> None:
    p, d = peers(MemoryLinkMaker())
    p.sender.offer("t", num_blocks=2, first_block=0, deadline=p.clock.now() + 0.5)
    d.receiver.pull(p.handoff("t", 2), 0)
    assert d.fail().reason == "lease_expired"
    _ended(p, "t", LeaseOutcome.EXPIRED)


def test_an_abort_before_the_pull_reaches_p_still_ends_the_lease(peers: Peers) -> None:
    p, d = peers(MemoryLinkMaker())
    d.receiver.pull(p.offer("t", 2), 0)
    d.receiver.abort("t")
    _ended(p, "t", LeaseOutcome.ABORTED)
    d.receiver.abort("never pulled")
    assert d.inbox.is_empty()


def test_a_cancel_on_p_fails_the_pull(peers: Peers) -> None:
    p, d = peers(MemoryLinkMaker())
    d.receiver.pull(p.offer("t", 4), 0)
    p.sender.grant("t", 0, [0])
    d.inbox.take(BlocksArrived).release()
    p.sender.cancel("t")
    p.sender.cancel("t")
    assert d.fail().reason == "aborted"
    _ended(p, "t", LeaseOutcome.CANCELLED)
    p.sender.grant("t", 1, [1])
    p.sender.close("t", FIRST_TOKENS)
    assert p.inbox.is_empty() and d.inbox.is_empty()


def test_a_pull_of_what_ended_with_its_first_tokens_is_needless_and_no_failure(
    peers: Peers,
) -> None:
    p, d = peers(MemoryLinkMaker())
    d.receiver.pull(p.offer("pulled", 4), 0)
    p.sender.grant("pulled", 0, [0])
    d.inbox.take(BlocksArrived).release()
    p.sender.finish("pulled")
    assert d.inbox.take(PullNeedless).transfer_id == "pulled"
    _ended(p, "pulled", LeaseOutcome.FINISHED)
    late = p.offer("late", 4)
    p.sender.finish("late")
    _ended(p, "late", LeaseOutcome.FINISHED)
    d.receiver.pull(late, 0)
    assert d.inbox.take(PullNeedless).transfer_id == "late"
    assert not p.stats.totals().failures and not d.stats.totals().failures
    assert p.inbox.is_empty() and d.inbox.is_empty()


def test_what_was_cancelled_before_it_was_offered_ends_at_once(peers: Peers) -> None:
    p, d = peers(MemoryLinkMaker())
    p.sender.cancel("t")
    handoff = p.offer("t", 4)
    _ended(p, "t", LeaseOutcome.CANCELLED)
    d.receiver.pull(handoff, 0)
    assert d.fail().reason == "aborted"
    assert p.inbox.is_empty()


def test_a_broken_data_link_fails_what_is_in_flight_and_the_next_pull_makes_another(
    peers: Peers,
) -> None:
    links = MemoryLinkMaker()
    p, d = peers(links)
    d.receiver.pull(p.offer("t", 4), 0)
    p.sender.grant("t", 0, [0])
    d.inbox.take(BlocksArrived).release()
    links.break_links()
    p.sender.grant("t", 1, [1])
    assert d.fail().reason == "peer_lost"
    _ended(p, "t", LeaseOutcome.PEER_LOST)
    d.receiver.pull(p.offer("next", 1), 0)
    p.sender.grant("next", 0, [5])
    p.sender.close("next", FIRST_TOKENS)
    d.receive([5])
    assert _same(p, [5], d, [5])


def test_an_announced_message_that_does_not_come_fails_the_pull(peers: Peers) -> None:
    """Heartbeats go on, so P is alive; what it owes has a deadline of its own."""
    links = MemoryLinkMaker()
    p, d = peers(links, timeout_s=5.0)
    d.receiver.pull(p.offer("t", 4), 0)
    p.sender.grant("t", 0, [0])
    d.inbox.take(BlocksArrived).release()
    links.pause()
    p.sender.grant("t", 1, [1])
    assert d.fail().reason == "timeout"
    _ended(p, "t", LeaseOutcome.PEER_LOST)


def test_a_long_silence_with_nothing_owed_is_no_failure(peers: Peers) -> None:
    p, d = peers(MemoryLinkMaker(), timeout_s=2.0, lease_s=5.0)
    d.receiver.pull(p.offer("t", 2), 0)
    p.sender.grant("t", 0, [0])
    d.unpack(d.inbox.take(BlocksArrived), [0, 1])
    p.offer("clock", 1)  # expires after more than two timeouts
    _ended(p, "clock", LeaseOutcome.EXPIRED)
    p.sender.grant("t", 1, [1])
    p.sender.close("t", FIRST_TOKENS)
    d.receive([0, 1])


def test_p_stopping_fails_pulls_and_ends_leases(peers: Peers) -> None:
    p, d = peers(MemoryLinkMaker())
    d.receiver.pull(p.offer("pulled", 2), 0)
    p.sender.grant("pulled", 0, [0])
    d.inbox.take(BlocksArrived).release()
    p.offer("offered", 2)
    p.sender.stop(20.0)
    assert d.fail().reason == "aborted"
    ended = {p.inbox.take(LeaseEnded).transfer_id, p.inbox.take(LeaseEnded).transfer_id}
    assert ended == {"pulled", "offered"}
    assert p.sender.num_leases == 0


def test_d_stopping_fails_its_pulls_and_p_ends_their_leases(peers: Peers) -> None:
    p, d = peers(MemoryLinkMaker())
    d.receiver.pull(p.offer("t", 2), 0)
    p.sender.grant("t", 0, [0])
    d.inbox.take(BlocksArrived).release()
    handoff = p.offer("late", 2)
    d.stop_receiving()
    assert d.fail().reason == "aborted"
    _ended(p, "t", LeaseOutcome.PEER_LOST)
    d.receiver.pull(handoff, 0)
    assert d.fail().reason == "aborted"


@pytest.mark.parametrize("kind", ["gloo", "tcp", "nearest"])
def test_many_transfers_share_a_link_without_mixing(peers: Peers, kind: str) -> None:
    p, d = peers(link_maker(kind))
    targets = {f"t{n}": list(range(4 * n, 4 * n + 4)) for n in range(16)}
    sources = {t: list(reversed(blocks)) for t, blocks in targets.items()}
    for transfer_id in targets:
        d.receiver.pull(p.offer(transfer_id, 4), 0)
    for first in (0, 2):
        for transfer_id, source in sources.items():
            p.sender.grant(transfer_id, first, source[first : first + 2])
    for transfer_id in targets:
        p.sender.close(transfer_id, FIRST_TOKENS)
    closed: set[str] = set()
    while len(closed) < len(targets):
        event = d.inbox.take(object)
        if isinstance(event, BlocksArrived):
            d.unpack(event, targets[event.transfer_id])
        else:
            assert isinstance(event, PullClosed)
            closed.add(event.transfer_id)
    assert all(_same(p, sources[t], d, targets[t]) for t in targets)
