"""Any order of step loop, links and time: every lease ends once, and never while it is packed."""

from __future__ import annotations

from collections import deque
from itertools import chain

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from core.errors import TransferError
from kv_transfer.events import LeaseEnded, LeaseOutcome
from kv_transfer.leases import LeaseTable, Piece

LINKS = ("a", "b")
IDS = st.sampled_from([f"t{n}" for n in range(5)])
MAX_INFLIGHT = 2


class LeaseMachine(RuleBasedStateMachine):
    """A model of what the step loop believes, beside the table."""

    @initialize()
    def start(self) -> None:
        self.now = 0.0
        self.table = LeaseTable(lease_s=5.0)
        for link in LINKS:
            self.table.add_link(link, max_blocks=2, max_inflight=MAX_INFLIGHT)
        self.open: dict[str, int] = {}
        self.granted: dict[str, int] = {}
        self.closed: set[str] = set()
        self.used: set[str] = set()
        self.packing: dict[str, deque[Piece]] = {link: deque() for link in LINKS}
        self.announced = dict.fromkeys(LINKS, 0)
        self.acked = dict.fromkeys(LINKS, 0)
        self.next_block: dict[str, int] = {}

    def over(self, ended: LeaseEnded | None) -> None:
        """Exactly once: a second end of the same lease is a KeyError here."""
        if ended is not None:
            pinned = chain.from_iterable(self.packing.values())
            assert ended.transfer_id not in {piece.transfer_id for piece in pinned}
            del self.open[ended.transfer_id]

    @rule(transfer_id=IDS, num_blocks=st.integers(0, 5), first=st.integers(0, 5))
    def offer(self, transfer_id: str, num_blocks: int, first: int) -> None:
        first = min(first, num_blocks)
        try:
            self.table.offer(
                transfer_id,
                num_blocks=num_blocks,
                first_block=first,
                now=self.now,
                deadline=self.now + 20.0,
            )
        except TransferError:
            assert transfer_id in self.used
            return
        assert transfer_id not in self.used
        self.used.add(transfer_id)
        self.open[transfer_id] = num_blocks
        self.granted[transfer_id] = self.next_block[transfer_id] = first

    @rule(transfer_id=IDS, count=st.integers(1, 4))
    def grant(self, transfer_id: str, count: int) -> None:
        """Also for leases that ended: the step loop may not know it yet."""
        if transfer_id not in self.granted or transfer_id in self.closed:
            return
        start = self.granted[transfer_id]
        end = min(start + count, self.open.get(transfer_id, start))
        self.table.grant(transfer_id, start, range(100 + start, 100 + end))
        self.granted[transfer_id] = end

    @rule(transfer_id=IDS)
    def close(self, transfer_id: str) -> None:
        done = self.granted.get(transfer_id) == self.open.get(transfer_id, -1)
        if done and transfer_id not in self.closed:
            self.table.close(transfer_id, (), now=self.now)
            self.closed.add(transfer_id)

    @rule(transfer_id=IDS, link=st.sampled_from(LINKS), held=st.integers(0, 6))
    def pull(self, transfer_id: str, link: str, held: int) -> None:
        if not self.table.has_link(link):
            return
        try:
            self.table.open_pull(link, transfer_id, num_held_blocks=held)
        except TransferError:
            return
        assert transfer_id in self.open
        first = max(self.next_block[transfer_id], held)
        self.next_block[transfer_id] = min(first, self.open[transfer_id])

    @rule(link=st.sampled_from(LINKS), announce=st.booleans())
    def take(self, link: str, announce: bool) -> None:
        """The next piece, announced now or when it is packed; then none is taken before."""
        if not self.table.has_link(link) or self.is_behind(link):
            return
        due = self.table.next_due(link)
        if isinstance(due, Piece):
            assert due.transfer_id in self.open
            assert due.seq == self.announced[link] + 1 <= self.acked[link] + MAX_INFLIGHT
            first = self.next_block[due.transfer_id]
            assert due.first_block == first and 1 <= len(due.blocks) <= 2
            assert due.blocks == tuple(range(100 + first, 100 + first + len(due.blocks)))
            self.next_block[due.transfer_id] += len(due.blocks)
            self.packing[link].append(due)
            if announce:
                assert self.table.announced(due.transfer_id), "it is wanted"
                self.announced[link] = due.seq
        elif due is not None:
            assert self.next_block[due.transfer_id] == self.open[due.transfer_id]
            self.over(self.table.closed(due.transfer_id, now=self.now))

    def is_behind(self, link: str) -> bool:
        """Whether a piece is packed that was not announced."""
        return any(piece.seq > self.announced[link] for piece in self.packing[link])

    @precondition(lambda self: any(self.packing.values()))
    @rule(data=st.data())
    def pack(self, data: st.DataObject) -> None:
        link = data.draw(st.sampled_from([link for link in LINKS if self.packing[link]]))
        piece = self.packing[link].popleft()
        is_announced = piece.seq <= self.announced[link]
        ended = self.table.packed(piece.transfer_id)
        self.over(ended)
        if not is_announced and ended is None and self.table.announced(piece.transfer_id):
            self.announced[link] = piece.seq

    @rule(link=st.sampled_from(LINKS), count=st.integers(1, 3))
    def ack(self, link: str, count: int) -> None:
        if self.table.has_link(link):
            self.acked[link] = min(self.acked[link] + count, self.announced[link])
            for ended in self.table.acked(link, self.acked[link], now=self.now):
                assert ended.outcome is LeaseOutcome.COMPLETED
                assert ended.transfer_id in self.closed
                self.over(ended)

    @rule(transfer_id=IDS, outcome=st.sampled_from(LeaseOutcome))
    def end(self, transfer_id: str, outcome: LeaseOutcome) -> None:
        """A cancel that nothing preceded leaves a tombstone."""
        if outcome is LeaseOutcome.CANCELLED:
            self.used.add(transfer_id)
        self.over(self.table.end(transfer_id, outcome))

    @rule(link=st.sampled_from(LINKS))
    def lose_link(self, link: str) -> None:
        for ended in self.table.end_link(link):
            self.over(ended)

    @rule(seconds=st.sampled_from([1.0, 4.0, 30.0]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        for transfer_id in self.table.expired(self.now):
            self.over(self.table.end(transfer_id, LeaseOutcome.EXPIRED))
        deadline = self.table.next_deadline()
        assert deadline is None or deadline > self.now

    @invariant()
    def the_table_and_the_step_loop_agree_on_what_is_open(self) -> None:
        assert set(self.table.live_ids()) == set(self.open)

    def teardown(self) -> None:
        """Losing everything ends everything, except what is packed right now; packing ends it."""
        if not hasattr(self, "table"):
            return
        for transfer_id in self.table.live_ids():
            self.over(self.table.end(transfer_id, LeaseOutcome.CANCELLED))
        for pieces in self.packing.values():
            while pieces:
                self.over(self.table.packed(pieces.popleft().transfer_id))
        assert len(self.table) == 0 and not self.open


TestLeases = LeaseMachine.TestCase
TestLeases.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
