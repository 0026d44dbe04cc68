"""Snapshots as server-sent events: made once a second however many pages look on, none for none."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

from core.clock import Clock
from core.errors import OverloadedError
from router.door import Door
from router.page.snapshot import snapshot

PERIOD_S = 1.0
MAX_WATCHERS = 64


class SnapshotFeed:
    """Lives on one event loop."""

    def __init__(self, door: Door, clock: Clock, *, shows_requests: bool) -> None:
        self._door = door
        self._clock = clock
        self._shows_requests = shows_requests
        self._made: float | None = None
        self._current = b""
        self._num_watchers = 0

    def current(self) -> bytes:
        """A snapshot as JSON, at most half a period old."""
        now = self._clock.now()
        if self._made is None or now - self._made > PERIOD_S / 2:
            shown = snapshot(self._door, shows_requests=self._shows_requests)
            self._current = json.dumps(shown, separators=(",", ":")).encode()
            self._made = now
        return self._current

    async def events(self) -> AsyncGenerator[bytes, None]:
        """One snapshot a period, until the house is closed. Raises OverloadedError when too many
        pages look on."""
        if self._num_watchers >= MAX_WATCHERS:
            raise OverloadedError(
                f"{MAX_WATCHERS} pages look on already", reason="saturated", retry_after_s=10.0
            )
        self._num_watchers += 1
        try:
            while not self._is_closed():
                yield b"data: " + self.current() + b"\n\n"
                await asyncio.sleep(PERIOD_S)
        finally:
            self._num_watchers -= 1

    def _is_closed(self) -> bool:
        admission = self._door.admission
        return admission.draining and not admission.num_running
