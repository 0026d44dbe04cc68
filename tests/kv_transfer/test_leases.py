from __future__ import annotations

import pytest

from core.errors import TransferError
from kv_transfer.events import FirstToken, LeaseEnded, LeaseOutcome
from kv_transfer.leases import Closing, LeaseTable, Piece

TOKENS = (FirstToken(0, 5, False),)


def _table(*, overlap: bool = True) -> LeaseTable:
    table = LeaseTable(lease_s=10.0, overlap=overlap)
    table.add_link("link", max_blocks=3, max_inflight=2)
    return table


def _offer(
    table: LeaseTable, transfer_id: str = "t", num_blocks: int = 4, **changes: float
) -> None:
    times = {"now": 0.0, "deadline": 100.0, **changes}
    table.offer(transfer_id, num_blocks=num_blocks, first_block=0, **times)


def _piece(table: LeaseTable) -> Piece:
    piece = table.next_due("link")
    assert isinstance(piece, Piece)
    return piece


def _sent(table: LeaseTable, transfer_id: str = "t") -> None:
    """What was taken is packed, and then announced."""
    assert table.packed(transfer_id) is None
    assert table.announced(transfer_id)


def _close(table: LeaseTable, transfer_id: str = "t", now: float = 0.0) -> LeaseEnded | None:
    assert isinstance(table.next_due("link"), Closing)
    return table.closed(transfer_id, now=now)


def test_a_lease_ends_when_everything_is_acknowledged_after_the_close() -> None:
    table = _table()
    _offer(table)
    table.open_pull("link", "t", num_held_blocks=0)
    assert table.next_due("link") is None
    table.grant("t", 0, [7, 8, 9, 6])
    assert _piece(table) == Piece(1, "t", 0, (7, 8, 9))
    _sent(table)
    table.close("t", TOKENS, now=3.0)
    assert _piece(table) == Piece(2, "t", 3, (6,))
    _sent(table)
    assert table.next_due("link") == Closing("t", TOKENS, 3.0)
    assert table.closed("t", now=3.0) is None
    assert table.acked("link", 1, now=3.0) == []
    assert table.acked("link", 2, now=3.0) == [LeaseEnded("t", LeaseOutcome.COMPLETED)]
    assert len(table) == 0 and table.next_deadline() is None


def test_a_pull_that_needs_nothing_completes_with_its_close() -> None:
    """CASES 5: everything is held, so nothing is sent and nobody would acknowledge it."""
    table = _table()
    _offer(table)
    table.open_pull("link", "t", num_held_blocks=4)
    table.grant("t", 0, [0, 1, 2, 3])
    assert table.next_due("link") is None
    table.close("t", TOKENS, now=0.0)
    assert _close(table) == LeaseEnded("t", LeaseOutcome.COMPLETED)


def test_an_unpulled_lease_lasts_its_grace_and_a_pulled_one_until_the_requests_deadline() -> None:
    table = _table()
    _offer(table, now=5.0)
    assert table.next_deadline() == 15.0
    assert table.expired(14.9) == [] and table.expired(15.0) == ["t"]
    table.open_pull("link", "t", num_held_blocks=0)
    assert table.next_deadline() == 100.0
    assert table.expired(99.0) == [] and table.expired(100.0) == ["t"]


def test_the_requests_deadline_cuts_the_grace_short() -> None:
    table = _table()
    _offer(table, now=5.0, deadline=8.0)
    assert table.next_deadline() == 8.0


def test_after_the_close_each_acknowledgement_renews_the_deadline() -> None:
    table = _table()
    _offer(table, num_blocks=6)
    table.open_pull("link", "t", num_held_blocks=0)
    table.grant("t", 0, list(range(6)))
    for _ in range(2):
        _piece(table)
        _sent(table)
    table.close("t", TOKENS, now=20.0)
    assert _close(table, now=20.0) is None
    assert table.next_deadline() == 30.0
    table.acked("link", 1, now=25.0)
    assert table.next_deadline() == 35.0


def test_a_lease_that_ends_while_it_is_packed_is_given_back_after_the_packing() -> None:
    table = _table()
    _offer(table)
    table.open_pull("link", "t", num_held_blocks=0)
    table.grant("t", 0, [0])
    _piece(table)
    assert table.end("t", LeaseOutcome.ABORTED) is None
    assert table.end("t", LeaseOutcome.EXPIRED) is None
    assert table.next_deadline() is None and table.link_of("t") is None
    table.grant("t", 1, [1])
    assert not table.announced("t")
    assert table.packed("t") == LeaseEnded("t", LeaseOutcome.ABORTED)
    _offer(table, "next", 1)
    table.open_pull("link", "next", num_held_blocks=0)
    table.grant("next", 0, [0])
    assert _piece(table).seq == 1, "what was not announced took no number"


def test_pieces_may_be_announced_before_they_are_packed() -> None:
    table = _table()
    _offer(table)
    table.open_pull("link", "t", num_held_blocks=0)
    table.grant("t", 0, [7, 8, 9, 6])
    table.close("t", TOKENS, now=0.0)
    for seq in (1, 2):
        assert _piece(table).seq == seq
        assert table.announced("t")
    assert _close(table) is None, "D is told while P packs"
    assert table.acked("link", 1, now=0.0) == []
    assert table.packed("t") is None and table.packed("t") is None
    assert table.acked("link", 2, now=0.0) == [LeaseEnded("t", LeaseOutcome.COMPLETED)]


def test_a_decode_worker_that_is_faster_than_the_packing_thread_completes_the_lease() -> None:
    """The last part is on its way, unpacked and acknowledged before P has noted that it packed."""
    table = _table()
    _offer(table, num_blocks=1)
    table.open_pull("link", "t", num_held_blocks=0)
    table.grant("t", 0, [7])
    table.close("t", TOKENS, now=0.0)
    _piece(table)
    assert table.announced("t")
    assert _close(table) is None
    assert table.acked("link", 1, now=0.0) == []
    assert table.packed("t") == LeaseEnded("t", LeaseOutcome.COMPLETED)


def test_a_lease_that_ends_while_several_pieces_are_owed_keeps_its_blocks_for_the_last() -> None:
    table = _table()
    _offer(table)
    table.open_pull("link", "t", num_held_blocks=0)
    table.grant("t", 0, [7, 8, 9, 6])
    for _ in range(2):
        _piece(table)
        assert table.announced("t")
    assert not table.is_over("t")
    assert table.end("t", LeaseOutcome.CANCELLED) is None
    assert table.is_over("t")
    assert table.packed("t") is None
    assert table.packed("t") == LeaseEnded("t", LeaseOutcome.CANCELLED)


def test_a_dead_link_ends_what_was_pulled_over_it_and_nothing_else() -> None:
    table = _table()
    _offer(table, "pulled")
    _offer(table, "offered")
    table.open_pull("link", "pulled", num_held_blocks=0)
    assert table.end_link("link") == [LeaseEnded("pulled", LeaseOutcome.PEER_LOST)]
    assert table.end_link("link") == []
    assert len(table) == 1 and not table.has_link("link")


def test_no_more_is_due_than_may_be_in_flight() -> None:
    table = _table()
    _offer(table, num_blocks=9)
    table.open_pull("link", "t", num_held_blocks=0)
    table.grant("t", 0, list(range(9)))
    table.close("t", TOKENS, now=0.0)
    for _ in range(2):
        _piece(table)
        _sent(table)
    assert table.next_due("link") is None, "neither a third message nor the close"
    table.acked("link", 1, now=0.0)
    assert _piece(table).seq == 3


def test_the_oldest_pull_with_something_to_send_goes_first() -> None:
    table = _table()
    for transfer_id in ("a", "b"):
        _offer(table, transfer_id)
        table.open_pull("link", transfer_id, num_held_blocks=0)
    table.grant("b", 0, [0])
    assert _piece(table).transfer_id == "b"
    _sent(table, "b")
    table.grant("b", 1, [1])
    table.grant("a", 0, [2])
    assert _piece(table).transfer_id == "a"


def test_without_overlap_pieces_are_due_only_after_the_close() -> None:
    table = _table(overlap=False)
    _offer(table, num_blocks=2)
    table.open_pull("link", "t", num_held_blocks=0)
    table.grant("t", 0, [0, 1])
    assert table.next_due("link") is None
    table.close("t", TOKENS, now=0.0)
    assert _piece(table).blocks == (0, 1)


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (LeaseOutcome.EXPIRED, "lease_expired"),
        (LeaseOutcome.CANCELLED, "aborted"),
        (LeaseOutcome.FINISHED, "finished"),
        (LeaseOutcome.PEER_LOST, "unknown_transfer"),
    ],
)
def test_a_late_pull_is_told_why_it_is_refused(outcome: LeaseOutcome, reason: str) -> None:
    table = _table()
    _offer(table)
    table.end("t", outcome)
    with pytest.raises(TransferError) as error:
        table.open_pull("link", "t", num_held_blocks=0)
    assert error.value.reason == reason


def test_unknown_and_second_pulls_are_refused() -> None:
    table = _table()
    _offer(table)
    table.open_pull("link", "t", num_held_blocks=0)
    for transfer_id in ("t", "other"):
        with pytest.raises(TransferError) as error:
            table.open_pull("link", transfer_id, num_held_blocks=0)
        assert error.value.reason == "unknown_transfer"


def test_transfer_ids_are_never_used_twice() -> None:
    table = _table()
    _offer(table, "live")
    _offer(table, "over")
    table.end("over", LeaseOutcome.ABORTED)
    for transfer_id in ("live", "over"):
        with pytest.raises(TransferError) as error:
            _offer(table, transfer_id)
        assert error.value.reason == "repeated_transfer"


def test_a_cancel_that_comes_first_refuses_the_offer() -> None:
    table = _table()
    assert table.end("t", LeaseOutcome.CANCELLED) is None
    with pytest.raises(TransferError) as error:
        _offer(table)
    assert error.value.reason == "aborted"


def test_an_abort_of_an_unknown_id_leaves_no_tombstone() -> None:
    table = _table()
    assert table.end("t", LeaseOutcome.ABORTED) is None
    _offer(table)
    assert len(table) == 1


@pytest.mark.parametrize("seq", [0, 2])
def test_acknowledging_what_was_never_sent_or_long_ago_is_corrupt(seq: int) -> None:
    table = _table()
    _offer(table)
    table.open_pull("link", "t", num_held_blocks=0)
    table.grant("t", 0, [0])
    _piece(table)
    _sent(table)
    table.acked("link", 1, now=0.0)
    with pytest.raises(TransferError) as error:
        table.acked("link", seq, now=0.0)
    assert error.value.reason == "corrupt"


def test_broken_promises_of_the_step_loop_are_assertions() -> None:
    table = _table()
    _offer(table)
    with pytest.raises(AssertionError, match="in order"):
        table.grant("t", 1, [0])
    with pytest.raises(AssertionError, match="before all blocks"):
        table.close("t", TOKENS, now=0.0)
