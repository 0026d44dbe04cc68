"""Keeps a worker a member of the cluster.

announce    once, when it can serve
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
    """One member's presence in the store. An unreachable store is retried, never fatal."""

    def __init__(self, store: Store, period_s: float) -> None:
        self._store = store
        self._period_s = period_s
        self._member: Member | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, member: Member) -> None:
        """Announces and goes on beating. Raises StoreUnavailableError if the store isn't there."""
        self._member = member
        await self._store.announce(member, ttl_s=self._ttl_s)
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
