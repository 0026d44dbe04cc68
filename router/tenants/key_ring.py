"""Whether a credential is good, by keys that are looked up in the store and remembered a while.

    known and fresh        no look-up
    known and stale        looked up again; the store away: the old knowledge goes on, and nobody
                           waits while it is tried again
    unknown                looked up; the store away: 503, nobody can say

One look-up serves all who ask for the same key at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from core.clock import Clock
from core.errors import AuthenticationError, UnavailableError
from state.api_key import is_secret_of, split_key
from state.store import StoreUnavailableError
from state.tenants import KeyRecord, TenantStore

log = logging.getLogger(__name__)

MAX_REMEMBERED = 10_000
"""Keys, and ids that are none; whoever makes ids up pushes out the oldest."""


@dataclass(frozen=True, slots=True)
class _Known:
    record: KeyRecord | None
    asked: float


class KeyRing:
    """Lives on one event loop. `wall` gives Unix time in seconds."""

    def __init__(
        self, store: TenantStore, clock: Clock, wall: Callable[[], float], *, refresh_s: float
    ) -> None:
        self._store = store
        self._clock = clock
        self._wall = wall
        self._refresh_s = refresh_s
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._asking: dict[str, asyncio.Task[KeyRecord | None]] = {}
        self._is_away = False
        self._next_try = 0.0

    async def check(self, key: str | None) -> KeyRecord:
        """The record of a good key. Raises AuthenticationError, UnavailableError."""
        if not key:
            raise AuthenticationError(
                "no API key was given; send it as `Authorization: Bearer YOUR_KEY`"
            )
        parts = split_key(key)
        if parts is None:
            raise _incorrect()
        key_id, secret = parts
        record = await self._record(key_id)
        if not is_secret_of(secret, record) or record is None or not self._is_valid(record):
            raise _incorrect()
        return record

    async def record(self, key_id: str) -> KeyRecord | None:
        """The valid key of this id, for work that goes on without its owner."""
        record = await self._record(key_id)
        return record if record is not None and self._is_valid(record) else None

    def forget(self, key_id: str) -> None:
        """What was known of it has changed."""
        self._known.pop(key_id, None)

    def _is_valid(self, record: KeyRecord) -> bool:
        now = self._wall()
        expired = record.expires_at is not None and record.expires_at <= now
        return record.revoked_at is None and not expired

    async def _record(self, key_id: str) -> KeyRecord | None:
        known, now = self._known.get(key_id), self._clock.now()
        if known is not None and now - known.asked < self._refresh_s:
            return known.record
        if self._is_away and now < self._next_try:
            return self._without_store(known)
        # None of those who wait for it may end it for the others.
        task = self._asking.get(key_id) or self._ask(key_id)
        if self._is_away and known is not None:
            return known.record
        try:
            return await asyncio.shield(task)
        except StoreUnavailableError:
            return self._without_store(known)

    def _without_store(self, known: _Known | None) -> KeyRecord | None:
        if known is None:
            raise UnavailableError(
                "API keys can't be checked at the moment", reason="store", retry_after_s=1.0
            )
        return known.record

    def _ask(self, key_id: str) -> asyncio.Task[KeyRecord | None]:
        task = asyncio.create_task(self._look_up(key_id))
        self._asking[key_id] = task
        task.add_done_callback(lambda done: self._asked(key_id, done))
        return task

    def _asked(self, key_id: str, task: asyncio.Task[KeyRecord | None]) -> None:
        """Also where everybody who asked has left, or has not waited."""
        self._asking.pop(key_id, None)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, StoreUnavailableError):
            if not self._is_away:
                log.warning("keys can't be looked up, going on with those known: %s", error)
            self._is_away = True
            self._next_try = self._clock.now() + self._refresh_s
        elif error is not None:
            log.error("looking up a key failed", exc_info=error)
        else:
            self._is_away = False

    async def _look_up(self, key_id: str) -> KeyRecord | None:
        asked = self._clock.now()
        record = await self._store.get_key(key_id)
        self._known[key_id] = _Known(record, asked)
        self._known.move_to_end(key_id)
        while len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)
        return record


def _incorrect() -> AuthenticationError:
    return AuthenticationError("the API key is unknown, revoked or expired")
