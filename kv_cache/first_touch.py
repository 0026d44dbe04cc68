"""Memory of the pool is made ready before anybody writes to it, beside the steps.

|  blocks taken so far  |  ready, not taken yet  |  never touched  |
                        ^ less than half of `ahead_bytes` left: a thread makes more ready

A page that is touched for the first time is cleared first: measured, 0.2 ms for a huge page where
memory is at hand, 5 ms on a virtual machine that has to get it from its host. A step that waits for
that is a gap in every stream. A pool hands its blocks out in order until all were used once, so one
number says what is next; a prompt's blocks are all taken long before the last of them is written.
"""

from __future__ import annotations

import threading

from kv_cache.storage import KVStorage

AHEAD_BYTES = 32 * 1024 * 1024
"""Kept ready: over a thousand tokens of a small model; memory that may never be needed."""
_PIECE_BYTES = 16 * 1024 * 1024


class FirstTouch:
    """Touches a storage's blocks in order, somewhat ahead of their first use. Thread-safe."""

    def __init__(self, storage: KVStorage, *, ahead_bytes: int = AHEAD_BYTES) -> None:
        self._storage = storage
        self._ahead_blocks = -(-ahead_bytes // storage.bytes_per_block)
        self._piece_blocks = max(1, _PIECE_BYTES // storage.bytes_per_block)
        self._changed = threading.Condition()
        self._running = False
        self._num_taken = 0
        self._num_ready = 0
        self._begin()

    def taken(self, block: int) -> None:
        """All blocks up to this one have been handed out. Returns at once."""
        with self._changed:
            self._num_taken = max(self._num_taken, block + 1)
            low = self._num_ready < self._wanted(self._ahead_blocks // 2)
        if low:
            self._begin()

    def wait_until_ready(self, timeout_s: float) -> int:
        """Waits while memory is being made ready; returns how many blocks from 0 on have it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running, timeout_s)
            return self._num_ready

    def _begin(self) -> None:
        """A thread that ends by itself: engines come and go, and leave none behind."""
        with self._changed:
            if self._running:
                return
            self._running = True
        threading.Thread(target=self._run, name="tandem-first-touch", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._changed:
                begin, wanted = self._num_ready, self._wanted(self._ahead_blocks)
                if begin >= wanted:
                    self._running = False
                    self._changed.notify_all()
                    return
            end = min(begin + self._piece_blocks, wanted)
            self._storage.touch(begin, end)
            with self._changed:
                self._num_ready = end

    def _wanted(self, ahead_blocks: int) -> int:
        return min(self._num_taken + ahead_blocks, self._storage.num_blocks)
