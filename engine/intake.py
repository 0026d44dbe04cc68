"""What stands between a message and a scheduler: limits, tombstones of cancels, and deadlines."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Container
from dataclasses import dataclass

from core.request import Attempt, AttemptFailed

_MAX_TOMBSTONES = 65_536
"""Cancels remembered; far more than can be under way between a router and a worker."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a worker can take; each number has its one source in the worker's start."""

    max_model_len: int
    vocab_size: int
    num_blocks: int
    block_size: int
    max_num_waiting: int


def refuse_id(
    transfer_id: str, *, over: Container[str], in_use: Container[str]
) -> AttemptFailed | None:
    """Why an attempt of this id can't begin here (any more), or None."""
    if transfer_id in over:
        return failed(transfer_id, "cancelled", "it was cancelled or is over")
    if transfer_id in in_use:
        return failed(transfer_id, "duplicate", "this transfer id is in use")
    return None


def refuse(attempt: Attempt, limits: Limits, *, num_waiting: int) -> AttemptFailed | None:
    """Why this worker can't take the attempt, or None if it can."""
    length = attempt.num_prompt_tokens + attempt.sampling.max_tokens
    if length > limits.max_model_len:
        message = f"prompt and max_tokens are {length} tokens; the limit is {limits.max_model_len}"
        return failed(attempt.transfer_id, "context_length_exceeded", message)
    if max(attempt.token_ids) >= limits.vocab_size:
        message = f"token id {max(attempt.token_ids)} is outside the vocabulary"
        return failed(attempt.transfer_id, "invalid_request", message)
    needed = -(-length // limits.block_size)
    if needed > limits.num_blocks:
        message = f"the request may need {needed} KV blocks; this worker has {limits.num_blocks}"
        return failed(attempt.transfer_id, "context_length_exceeded", message)
    if num_waiting >= limits.max_num_waiting:
        message = f"{num_waiting} attempts wait already"
        return failed(attempt.transfer_id, "saturated", message, retryable=True)
    return None


def failed(
    transfer_id: str, code: str, message: str, *, retryable: bool = False, reason: str = ""
) -> AttemptFailed:
    return AttemptFailed(transfer_id, code, message, retryable, reason)


class Tombstones:
    """Transfer ids that were cancelled or ended, so that what comes late is refused."""

    def __init__(self) -> None:
        self._ids: OrderedDict[str, None] = OrderedDict()

    def add(self, transfer_id: str) -> None:
        self._ids[transfer_id] = None
        self._ids.move_to_end(transfer_id)
        while len(self._ids) > _MAX_TOMBSTONES:
            self._ids.popitem(last=False)

    def __contains__(self, transfer_id: object) -> bool:
        return transfer_id in self._ids


class Deadlines:
    """Deadlines by id; removal is lazy, so every operation is O(log n)."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []

    def set(self, key: str, at: float) -> None:
        self._at[key] = at
        heapq.heappush(self._heap, (at, key))

    def discard(self, key: str) -> None:
        self._at.pop(key, None)

    def next(self) -> float | None:
        """The earliest deadline."""
        while self._heap and self._at.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def pop_expired(self, now: float) -> list[str]:
        """Removes and returns every id whose deadline has come."""
        expired: list[str] = []
        while (at := self.next()) is not None and at <= now:
            key = heapq.heappop(self._heap)[1]
            del self._at[key]
            expired.append(key)
        return expired
