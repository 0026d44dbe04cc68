"""What D accepts from P's announcements."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import torch
from fakes_kv_peers import HEADS, LONG_S, SPEC, Inbox

from core.clock import MonotonicClock
from core.errors import TransferError
from kv_cache.storage import KVStorage
from kv_transfer.arrivals import Announced, Arrivals
from kv_transfer.events import BlocksArrived
from kv_transfer.layout import plan_routes
from kv_transfer.link import DataLink
from kv_transfer.link_plan import LinkPlan
from kv_transfer.memory_link import MemoryLinkMaker
from kv_transfer.pull_registry import PullRegistry
from kv_transfer.staging import BlockFormat, Lane, Staging, StagingLimits, StagingSize
from kv_transfer.stats import TransferStats

GOOD = Announced(1, "t", 0, 2, 2 * SPEC.bytes_per_block)


def _plan(max_inflight: int) -> LinkPlan:
    limits = StagingLimits(2 * SPEC.bytes_per_block, max_inflight)
    return LinkPlan.of(plan_routes(HEADS, HEADS), BlockFormat.of(KVStorage(SPEC, 1)), limits)


def _lane(link: DataLink) -> Lane:
    block_format = BlockFormat.of(KVStorage(SPEC, 1))
    size = StagingSize(num_slots=4, num_blocks=2)
    return Lane(0, link, Staging(block_format, size, num_heads=2, backend="gloo"), None)


def _arrivals(inbox: Inbox, acknowledged: list[int], *, max_inflight: int = 1) -> Arrivals:
    """With one live pull, t."""
    clock, stats = MonotonicClock(), TransferStats()
    registry = PullRegistry(clock, inbox.post, stats)
    registry.add_link("link")
    assert registry.open("t", "link")
    return Arrivals(
        "link",
        registry,
        _plan(max_inflight),
        acknowledge=acknowledged.append,
        give_up=lambda _: None,
        others_unpack=lambda seq, blocks: None,
        timeout_s=LONG_S,
        clock=clock,
        stats=stats,
    )


BLOCK_BYTES = SPEC.bytes_per_block


@pytest.mark.parametrize(
    "bad",
    [
        dataclasses.replace(GOOD, seq=2),
        dataclasses.replace(GOOD, seq=0),
        dataclasses.replace(GOOD, num_blocks=0, size_bytes=0),
        dataclasses.replace(GOOD, num_blocks=3, size_bytes=3 * BLOCK_BYTES),
        dataclasses.replace(GOOD, size_bytes=2 * BLOCK_BYTES - 1),
        dataclasses.replace(GOOD, checksums=(1, 2)),
    ],
    ids=["skipped", "repeated", "empty", "too long", "wrong size", "checksums of other lanes"],
)
def test_a_message_out_of_order_or_of_a_wrong_size_is_corrupt(bad: Announced) -> None:
    with pytest.raises(TransferError) as error:
        _arrivals(Inbox(), []).expect(bad)
    assert error.value.reason == "corrupt"


def test_more_messages_than_there_are_slots_are_corrupt() -> None:
    arrivals = _arrivals(Inbox(), [])
    arrivals.expect(GOOD)
    with pytest.raises(TransferError) as error:
        arrivals.expect(dataclasses.replace(GOOD, seq=2))
    assert error.value.reason == "corrupt"


def test_stopping_ends_the_receiving_thread() -> None:
    arrivals = _arrivals(Inbox(), [])
    arrivals.stop()
    with pytest.raises(TransferError):
        arrivals.run([], None)


@pytest.fixture
def arriving() -> Iterator[Callable[[Arrivals, Inbox, int], list[BlocksArrived]]]:
    """Announces and sends so many messages; returns what arrived of them, to be released."""
    links = MemoryLinkMaker()
    running: list[tuple[Arrivals, Future[None]]] = []
    with ThreadPoolExecutor(2) as threads:

        def arrive(arrivals: Arrivals, inbox: Inbox, number: int) -> list[BlocksArrived]:
            accepting = threads.submit(links.accept, "name", LONG_S)
            lane = _lane(links.dial(links.host(), "name", LONG_S))
            running.append((arrivals, threads.submit(arrivals.run, [lane], None)))
            for seq in range(1, number + 1):
                arrivals.expect(dataclasses.replace(GOOD, seq=seq))
                accepting.result(LONG_S).send(torch.zeros(2 * BLOCK_BYTES // 4))
            return [inbox.take(BlocksArrived) for _ in range(number)]

        yield arrive
        for arrivals, thread in running:
            arrivals.stop()
            assert isinstance(thread.exception(LONG_S), TransferError)


Arrive = Callable[[Arrivals, Inbox, int], list[BlocksArrived]]


def test_an_acknowledgement_waits_for_the_messages_before_it(arriving: Arrive) -> None:
    """The step loop releases in any order, and twice; P may only overwrite what is free."""
    inbox, acknowledged = Inbox(), list[int]()
    arrivals = _arrivals(inbox, acknowledged, max_inflight=3)
    first, second, third = arriving(arrivals, inbox, 3)
    second.release()
    third.release()
    third.release()
    assert acknowledged == []
    first.release()
    first.release()
    assert acknowledged == [3]


def test_half_the_slots_are_acknowledged_at_once_and_the_last_message_at_any_rate(
    arriving: Arrive,
) -> None:
    inbox, acknowledged = Inbox(), list[int]()
    arrivals = _arrivals(inbox, acknowledged, max_inflight=4)
    first, second, third = arriving(arrivals, inbox, 3)
    first.release()
    assert acknowledged == []
    second.release()
    assert acknowledged == [2]
    third.release()
    assert acknowledged == [2, 3]
