"""Requests in the house, and the last ones that left it, by their own ids and clients' names."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from core.request import AttemptDone, Phase
from router.observe.request_record import RequestRecord

ANSWER_PREFIXES = ("chatcmpl-", "cmpl-", "resp_")
"""What answers put before a request's id."""


class RequestRing:
    """Bounded: an ended request is forgotten when `size` others have ended after it."""

    def __init__(self, size: int) -> None:
        self._running: dict[str, RequestRecord] = {}
        self._ended: deque[RequestRecord] = deque()
        self._size = size
        self._owners: dict[str, RequestRecord] = {}
        """Of the attempts of ended requests, whose workers may still have a word to say."""

    def entered(self, record: RequestRecord) -> None:
        self._running[record.request_id] = record

    def ended(self, record: RequestRecord) -> None:
        """It has left, or was never let in."""
        self._running.pop(record.request_id, None)
        self._ended.append(record)
        for transfer_id in record.timeline.attempts:
            self._owners[transfer_id] = record
        while len(self._ended) > self._size:
            for transfer_id in self._ended.popleft().timeline.attempts:
                del self._owners[transfer_id]

    def leg_done(self, phase: Phase, done: AttemptDone) -> None:
        """A leg's end that came after its request's."""
        record = self._owners.get(done.transfer_id)
        if record is not None:
            record.timeline.leg_done(phase, done)

    def running(self) -> Iterator[RequestRecord]:
        yield from self._running.values()

    def newest(self) -> Iterator[RequestRecord]:
        """Running ones first, the latest first among them; then those that ended, the same way."""
        yield from reversed(self._running.values())
        yield from reversed(self._ended)

    def find(self, name: str) -> list[RequestRecord]:
        """All of this name: a request's own id, that of its answer, or a client's x-request-id."""
        ids = {name, *(name.removeprefix(p) for p in ANSWER_PREFIXES)}
        return [r for r in self.newest() if r.request_id in ids or r.client_id == name]
