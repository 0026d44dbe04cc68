"""Work this router sent to a worker that the worker's load report cannot show yet.

Between two reports several requests are routed; without this memory all of them would go to the
worker that looked idlest at the last report.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Assignment:
    """What one attempt adds to a worker."""

    num_sequences: int
    num_prefill_tokens: int
    num_blocks: int


class Assignments:
    """The attempts not yet reported, and their sums.

    An attempt is reserved when its pair is chosen; D's leg is sent only when P has started. A
    report that was on its way when we sent says nothing about it. The second one after it does,
    since a session's messages stay in order and a worker reads faster than it reports.
    """

    def __init__(self) -> None:
        self._open: dict[str, tuple[int | None, Assignment]] = {}
        self._num_reports = 0
        self.num_routed = 0

    def reserve(self, transfer_id: str, assignment: Assignment) -> None:
        """The worker was chosen; counts until it was sent and reported, or removed."""
        self._open[transfer_id] = (None, assignment)
        self.num_routed += 1

    def sent(self, transfer_id: str) -> None:
        """The worker was told; its reports will soon contain it."""
        entry = self._open.get(transfer_id)
        if entry is not None:
            self._open[transfer_id] = (self._num_reports, entry[1])

    def remove(self, transfer_id: str) -> None:
        """The attempt is over. Idempotent."""
        self._open.pop(transfer_id, None)

    def reported(self) -> None:
        """A load report came in."""
        self._num_reports += 1
        oldest_unseen = self._num_reports - 1
        self._open = {t: e for t, e in self._open.items() if e[0] is None or e[0] >= oldest_unseen}

    def clear(self) -> None:
        """The worker lost everything."""
        self._open.clear()

    def total(self) -> Assignment:
        entries = [assignment for _, assignment in self._open.values()]
        return Assignment(
            num_sequences=sum(a.num_sequences for a in entries),
            num_prefill_tokens=sum(a.num_prefill_tokens for a in entries),
            num_blocks=sum(a.num_blocks for a in entries),
        )
