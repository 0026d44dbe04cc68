"""What D accepts from P's announcements."""

from __future__ import annotations

import dataclasses

import pytest
from fakes_kv_peers import SPEC, Inbox

from core.clock import MonotonicClock
from core.errors import TransferError
from kv_cache.storage import KVStorage
from kv_transfer.arrivals import Announced, Arrivals
from kv_transfer.pull_registry import PullRegistry
from kv_transfer.staging import BlockFormat, StagingLimits
from kv_transfer.stats import TransferStats

GOOD = Announced(1, "t", 0, 2, 2 * SPEC.bytes_per_block)


def _arrivals() -> Arrivals:
    clock, stats = MonotonicClock(), TransferStats()
    return Arrivals(
        "link",
        PullRegistry(clock, Inbox().post, stats),
        BlockFormat.of(KVStorage(SPEC, 1)),
        StagingLimits(max_message_bytes=2 * SPEC.bytes_per_block, max_inflight_messages=1),
        acknowledge=lambda seq: None,
        timeout_s=1.0,
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
    ],
    ids=["skipped", "repeated", "empty", "too long", "wrong size"],
)
def test_a_message_out_of_order_or_of_a_wrong_size_is_corrupt(bad: Announced) -> None:
    with pytest.raises(TransferError) as error:
        _arrivals().expect(bad)
    assert error.value.reason == "corrupt"


def test_more_messages_than_there_are_slots_are_corrupt() -> None:
    arrivals = _arrivals()
    arrivals.expect(GOOD)
    with pytest.raises(TransferError) as error:
        arrivals.expect(dataclasses.replace(GOOD, seq=2))
    assert error.value.reason == "corrupt"


def test_stopping_ends_the_receiving_thread() -> None:
    arrivals = _arrivals()
    arrivals.stop()
    with pytest.raises(TransferError):
        arrivals.run([], None)
