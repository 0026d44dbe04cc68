"""Which pulls of a D worker live, and on which link: the one place that tells the step loop.

    open > arrived ... > closed | needless | failed | link failed    told exactly once
         > abort                                                     nothing is told any more

Whoever delivers checks that the pull lives and tells the step loop under one lock, so that after
`abort` returns, or after PullFailed, nothing follows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from core.clock import Clock
from kv_transfer.events import (
    BlocksArrived,
    FirstToken,
    PullClosed,
    PullEvent,
    PullFailed,
    PullNeedless,
)
from kv_transfer.stats import TransferStats


@dataclass(frozen=True, slots=True)
class _Pull:
    link_id: str
    opened_at: float


class PullRegistry:
    """Thread-safe. `on_event` is called under its lock: it may only enqueue."""

    def __init__(
        self, clock: Clock, on_event: Callable[[PullEvent], None], stats: TransferStats
    ) -> None:
        self._clock = clock
        self._on_event = on_event
        self._stats = stats
        self._lock = threading.Lock()
        self._links: set[str] = set()
        self._pulls: dict[str, _Pull] = {}

    def add_link(self, link_id: str) -> None:
        with self._lock:
            self._links.add(link_id)

    def open(self, transfer_id: str, link_id: str) -> bool:
        """The pull lives on this link; False if the link is dead already."""
        with self._lock:
            assert transfer_id not in self._pulls, f"{transfer_id} is being pulled"
            if link_id not in self._links:
                return False
            self._pulls[transfer_id] = _Pull(link_id, self._clock.now())
            return True

    def refuse(self, transfer_id: str, reason: str, message: str) -> None:
        """Fails a pull that never opened."""
        with self._lock:
            self._stats.failed(reason)
            self._on_event(PullFailed(transfer_id, reason, message))

    def abort(self, transfer_id: str) -> str | None:
        """Forgets the pull; returns its link, None if there is no such pull."""
        with self._lock:
            pull = self._pulls.pop(transfer_id, None)
            return None if pull is None else pull.link_id

    def arrived(self, link_id: str, event: BlocksArrived) -> bool:
        """False if nobody wants the blocks any more."""
        with self._lock:
            if not self._lives(event.transfer_id, link_id):
                return False
            self._on_event(event)
            return True

    def closed(
        self,
        link_id: str,
        transfer_id: str,
        first_tokens: tuple[FirstToken, ...],
        chunk_end_age_s: float,
    ) -> None:
        with self._lock:
            if self._lives(transfer_id, link_id):
                pull = self._pulls.pop(transfer_id)
                self._stats.completed(self._clock.now() - pull.opened_at, chunk_end_age_s)
                self._on_event(PullClosed(transfer_id, first_tokens, chunk_end_age_s))

    def needless(self, link_id: str, transfer_id: str) -> None:
        """P finished every choice by itself."""
        with self._lock:
            if self._lives(transfer_id, link_id):
                del self._pulls[transfer_id]
                self._on_event(PullNeedless(transfer_id))

    def failed(self, link_id: str, transfer_id: str, reason: str, message: str) -> None:
        with self._lock:
            if self._lives(transfer_id, link_id):
                self._fail(transfer_id, reason, message)

    def fail_link(self, link_id: str, reason: str, message: str) -> None:
        """The link is dead, and every pull on it with it. Idempotent."""
        with self._lock:
            self._links.discard(link_id)
            for transfer_id in [t for t, p in self._pulls.items() if p.link_id == link_id]:
                self._fail(transfer_id, reason, message)

    def _lives(self, transfer_id: str, link_id: str) -> bool:
        pull = self._pulls.get(transfer_id)
        return pull is not None and pull.link_id == link_id

    def _fail(self, transfer_id: str, reason: str, message: str) -> None:
        del self._pulls[transfer_id]
        self._stats.failed(reason)
        self._on_event(PullFailed(transfer_id, reason, message))
