"""The sending thread of one link, driven without gRPC."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence

import pytest
import torch
from fakes_kv_peers import FIRST_TOKENS, LONG_S, SPEC, Inbox, random_storage

from core.clock import MonotonicClock
from core.kv_spec import KVGroup, KVSpec
from kv_cache.storage import KVStorage
from kv_transfer.events import LeaseEnded, LeaseOutcome
from kv_transfer.layout import plan_routes
from kv_transfer.leases import Piece
from kv_transfer.link import LinkMaker
from kv_transfer.link_plan import LinkPlan, lane_name
from kv_transfer.memory_link import MemoryLinkMaker
from kv_transfer.outbox import Outbox
from kv_transfer.sender import Sender
from kv_transfer.sender_link import SenderLink
from kv_transfer.staging import BlockFormat, StagingLimits
from kv_transfer.stats import TransferStats
from kv_transfer.tcp_link import TcpLinkMaker
from protos import kv_transfer_pb2 as pb

LARGE = KVSpec((KVGroup(num_layers=32, num_kv_heads=2, head_dim=8192),), 16, "float32")
"""Blocks of 64 MiB: more than the system buffers."""
HEADS_OF_TWO_RANKS = ((0,), (1,))


class _Setting:
    """A sender with one link over in-memory data links; the test plays D."""

    def __init__(
        self,
        storage: KVStorage,
        decode_heads: Sequence[Sequence[int]],
        *,
        verify: bool = False,
        links: LinkMaker | None = None,
    ) -> None:
        self.inbox, self.links, stats = Inbox(), links or MemoryLinkMaker(), TransferStats()
        self.clock = MonotonicClock()
        self.sender = Sender(
            lease_s=LONG_S, overlap=True, clock=self.clock, on_event=self.inbox.post, stats=stats
        )
        self.loop = asyncio.new_event_loop()
        self.outbox = Outbox(self.loop, heartbeat=pb.LinkEvent(), timeout_s=LONG_S)
        self.link = SenderLink(
            "link",
            self.sender,
            storage,
            self.links,
            self.outbox,
            plan=LinkPlan.of(
                plan_routes([[0, 1]], decode_heads),
                BlockFormat.of(storage),
                StagingLimits(4 * storage.bytes_per_block, 2),
            ),
            token="token",
            welcome=lambda hosts: pb.LinkEvent(welcome=pb.LinkWelcome()),
            timeout_s=LONG_S,
            stats=stats,
            verify=verify,
        )
        self.link.start()

    def pull(self, transfer_id: str, blocks: list[int]) -> None:
        deadline = self.clock.now() + LONG_S
        self.sender.offer(transfer_id, num_blocks=len(blocks), first_block=0, deadline=deadline)
        self.sender.open_pull("link", transfer_id, 0)
        self.sender.grant(transfer_id, 0, blocks)

    def said(self) -> list[str | None]:
        """Kinds of the events on the control stream, once that is closed."""

        async def read() -> list[str | None]:
            events = [event async for said in self.outbox.stream() for event in said]
            return [event.WhichOneof("kind") for event in events]

        return self.loop.run_until_complete(read())

    def stop(self) -> None:
        self.sender.stop(LONG_S)
        self.link.join(LONG_S)
        self.loop.close()


@pytest.fixture
def settings() -> Iterator[list[_Setting]]:
    made: list[_Setting] = []
    yield made
    for setting in made:
        setting.stop()


def test_each_decode_rank_gets_its_heads_over_a_data_link_of_its_own(
    settings: list[_Setting],
) -> None:
    storage = random_storage(5)
    setting = _Setting(storage, HEADS_OF_TWO_RANKS)
    settings.append(setting)
    ends = [
        setting.links.dial(setting.links.host(), lane_name("link", "token", rank), LONG_S)
        for rank in (0, 1)
    ]
    setting.pull("t", [4, 2])
    for rank, end in enumerate(ends):
        expected = storage.pack([4, 2], slice(rank, rank + 1))
        buffer = torch.zeros_like(expected)
        end.recv(buffer).wait(LONG_S)
        assert torch.equal(buffer, expected)
    setting.sender.close("t", FIRST_TOKENS)
    setting.sender.acked("link", 1)
    assert setting.inbox.take(LeaseEnded).outcome is LeaseOutcome.COMPLETED


def test_a_link_that_fails_while_it_is_made_ends_its_thread(settings: list[_Setting]) -> None:
    """D is gone before it joined; nobody waits for it until the deadline."""
    setting = _Setting(random_storage(1), [[0, 1]])
    settings.append(setting)
    setting.pull("t", [1])
    setting.link.fail("peer_lost", "D closed the link")
    assert setting.inbox.take(LeaseEnded) == LeaseEnded("t", LeaseOutcome.PEER_LOST)
    setting.link.join(LONG_S / 2)
    assert not setting.link.is_running


class _SlowStorage(KVStorage):
    """Packs only when told to, or fails."""

    def __init__(self) -> None:
        super().__init__(SPEC, 8)
        self.packing, self.go_on = threading.Event(), threading.Event()
        self.broken = False

    def pack(
        self,
        blocks: Sequence[int],
        head_slice: slice | None = None,
        out: torch.Tensor | None = None,
    ) -> torch.Tensor:
        self.packing.set()
        assert self.go_on.wait(LONG_S)
        if self.broken:
            raise RuntimeError("the device is gone")
        return super().pack(blocks, head_slice, out)


def test_a_lease_that_is_cancelled_while_it_is_packed_ends_after_the_packing(
    settings: list[_Setting],
) -> None:
    storage = _SlowStorage()
    setting = _Setting(storage, [[0, 1]])
    settings.append(setting)
    setting.links.dial(setting.links.host(), lane_name("link", "token", 0), LONG_S)
    setting.pull("t", [4, 2])
    assert storage.packing.wait(LONG_S)
    setting.sender.cancel("t")
    assert setting.inbox.is_empty(), "its blocks are being read"
    storage.go_on.set()
    assert setting.inbox.take(LeaseEnded) == LeaseEnded("t", LeaseOutcome.CANCELLED)
    assert setting.sender.num_leases == 0


class _WatchedStorage(KVStorage):
    """Says when blocks are about to be sent from their places."""

    def __init__(self) -> None:
        super().__init__(LARGE, 8)
        self.sending = threading.Event()

    def places(self, blocks: Sequence[int]) -> list[memoryview] | None:
        self.sending.set()
        return super().places(blocks)


@pytest.mark.parametrize("received", [True, False])
def test_a_lease_that_is_cancelled_while_its_blocks_are_sent_ends_after_that(
    settings: list[_Setting], monkeypatch: pytest.MonkeyPatch, received: bool
) -> None:
    """They go into the network from where they lie: until D has taken them, or the link is dead,
    nobody else may get them."""
    storage, links = _WatchedStorage(), TcpLinkMaker(host="127.0.0.1")
    setting = _Setting(storage, [[0, 1]], links=links)
    settings.append(setting)
    end = links.dial(links.host(), lane_name("link", "token", 0), LONG_S)
    blocks = [4, 2, 7]
    storage.unpack(blocks, torch.randint_like(storage.pack(blocks), 256))
    expected = storage.pack(blocks)
    next_piece, started = setting.sender.next_piece, threading.Event()

    def look_on(link_id: str, *, wait: bool) -> Piece | None:
        if storage.sending.is_set():
            started.set()
        return next_piece(link_id, wait=wait)

    monkeypatch.setattr(setting.sender, "next_piece", look_on)
    setting.pull("t", blocks)
    assert started.wait(LONG_S)
    setting.sender.cancel("t")
    assert setting.inbox.is_empty(), "its blocks are being read"
    if received:
        buffer = torch.zeros_like(expected)
        for part in [end.recv(part) for part in buffer]:  # a block is larger than a part
            part.wait(LONG_S)
        assert torch.equal(buffer, expected)
    else:
        end.close()
    assert setting.inbox.take(LeaseEnded) == LeaseEnded("t", LeaseOutcome.CANCELLED)
    assert setting.sender.num_leases == 0
    end.close()
    links.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("verify", [False, True])
def test_a_packing_that_fails_ends_the_link_and_its_leases(
    settings: list[_Setting], verify: bool
) -> None:
    storage = _SlowStorage()
    storage.broken = True
    setting = _Setting(storage, [[0, 1]], verify=verify)
    settings.append(setting)
    setting.links.dial(setting.links.host(), lane_name("link", "token", 0), LONG_S)
    setting.pull("t", [4, 2])
    storage.go_on.set()
    assert setting.inbox.take(LeaseEnded) == LeaseEnded("t", LeaseOutcome.PEER_LOST)
    assert setting.inbox.is_empty() and setting.sender.num_leases == 0
    # Its checksum would have been announced with it; without, D is told at once and loses the link
    assert setting.said() == (["welcome"] if verify else ["welcome", "message"])
