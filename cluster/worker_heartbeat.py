"""Keeps a worker a member of the cluster.

announce    when it can serve; a store that isn't there is asked again, for a while
heartbeat   every period; announced again if the store forgot it, or came back empty
withdraw    once, when it drains or stops; without it the membership expires after three periods
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from state.store import Member, Store, StoreUnavailableError

_PERIODS_TO_LIVE = 3

log = logging.getLogger(__name__)


class Heartbeat:
    """One member's presence in the store. Once it is announced, a lost store is never fatal."""

    def __init__(self, store: Store, period_s: float) -> None:
        self._store = store
        self._period_s = period_s
        self._member: Member | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, member: Member, *, patience_s: float) -> None:
        """Announces and goes on beating. Raises StoreUnavailableError if there was no store for
        `patience_s`: a worker that has loaded its weights doesn't throw them away for less."""
        self._member = member
        await self._announce_first(member, patience_s)
        self._task = asyncio.create_task(self._beat(member))

    async def stop(self) -> None:
        """Withdraws. Idempotent."""
        task, self._task = self._task, None
        if task is None or self._member is None:
            return
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        with contextlib.suppress(StoreUnavailableError):  # it expires by itself
            await self._store.withdraw(self._member.worker_id, self._member.epoch)

    @property
    def _ttl_s(self) -> float:
        return _PERIODS_TO_LIVE * self._period_s

    async def _announce_first(self, member: Member, patience_s: float) -> None:
        now = asyncio.get_running_loop().time
        until = now() + patience_s
        while True:
            try:
                await self._store.announce(member, ttl_s=self._ttl_s)
                return
            except StoreUnavailableError as error:
                if now() >= until:
                    raise
                log.warning("%s waits for the store: %s", member.worker_id, error)
            await asyncio.sleep(self._period_s)

    async def _beat(self, member: Member) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            try:
                if not await self._store.heartbeat(
                    member.worker_id, member.epoch, ttl_s=self._ttl_s
                ):
                    await self._store.announce(member, ttl_s=self._ttl_s)
            except StoreUnavailableError as error:
                log.warning("heartbeat of %s: %s", member.worker_id, error)
