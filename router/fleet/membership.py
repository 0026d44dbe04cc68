"""Follows the store's members, so that the fleet holds a session to each.

every heartbeat: members(), with a deadline > reconcile the fleet
no pair yet: several times a second, since requests may be waiting for the first one
store unreachable: the fleet stays as it was (its sessions notice lost workers by themselves)
"""

from __future__ import annotations

import asyncio
import logging

from router.fleet.fleet import Fleet
from state.store import Store, StoreUnavailableError

log = logging.getLogger(__name__)

_EAGER_PERIOD_S = 0.1


class Membership:
    """The loop between store and fleet."""

    def __init__(self, store: Store, fleet: Fleet, *, period_s: float, timeout_s: float) -> None:
        self._store = store
        self._fleet = fleet
        self._period_s = period_s
        self._timeout_s = timeout_s
        self._closing = asyncio.Event()
        self.store_reachable = True

    async def run(self) -> None:
        """Runs until `close` or cancellation."""
        while not self._closing.is_set():
            await self._refresh()
            try:
                async with asyncio.timeout(self._next_period_s()):
                    await self._closing.wait()
            except TimeoutError:
                continue

    def close(self) -> None:
        self._closing.set()

    def _next_period_s(self) -> float:
        ready = self._fleet.readiness() is None
        return self._period_s if ready else min(self._period_s, _EAGER_PERIOD_S)

    async def _refresh(self) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                members = await self._store.members()
        except (TimeoutError, StoreUnavailableError) as error:
            if self.store_reachable:
                reason = str(error) or f"no answer within {self._timeout_s:g} s"
                log.warning("store unreachable, going on with the last known members: %s", reason)
            self.store_reachable = False
            return
        self.store_reachable = True
        self._fleet.reconcile(members)
