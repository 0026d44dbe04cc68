"""Limits of keys as requests meet them: shared over all routers, or this router's share of them.

acquire   one atomic call to the shared limits, bounded by a short deadline; what they granted is
          remembered here, too. No answer: at once, and until they answer again, this router
          grants its share alone
settle    noted here at once, sent in batches one after the other, each taken once however often
          it is sent: usage and leases are not lost while the store is away
back      the shared limits hear how little is left of what was granted alone
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from core.clock import Clock
from router.tenants.local_limits import LocalLimits
from state.store import StoreUnavailableError
from state.tenants import (
    KeyLimits,
    LimitDemand,
    LimitVerdict,
    Settlement,
    SharedLimits,
    TenantStore,
    UsageRow,
)

log = logging.getLogger(__name__)

BEAT_S = 1.0
ROUTER_TTL_S = 5.0
LAST_TRIES = 3
LAST_PAUSE_S = 0.2
"""A router that stops has little time; its usage should not be lost to one late answer."""
MAX_DENIAL_KNOWN_S = 1.0
"""A key's limits may be raised."""
MAX_LEASES_KEPT = 10_000
"""Ended leases of one key that wait to be told; more would end by themselves."""


class Limits:
    """Lives on one event loop; `run` beside it."""

    def __init__(
        self,
        store: TenantStore,
        shared: SharedLimits | None,
        router_id: str,
        clock: Clock,
    ) -> None:
        """Without `shared` this router is the only one."""
        self._store = store
        self._shared = shared
        self._router_id = router_id
        self._clock = clock
        self.local = LocalLimits()
        self._denied: dict[str, tuple[float, LimitVerdict]] = {}
        self._pending: dict[tuple[str, str], Settlement] = {}
        self._granted_alone: dict[str, KeyLimits] = {}
        self._sequence = 0
        self._wake = asyncio.Event()
        self._closing = False
        self.is_away = False
        """The store did not answer: limits are this router's own."""

    @property
    def num_routers(self) -> int:
        return self.local.num_routers

    def known_denial(self, key_id: str) -> LimitVerdict | None:
        """Why nothing can be granted to this key just now, as was found out a moment ago."""
        until, verdict = self._denied.get(key_id, (0.0, None))
        return verdict if self._clock.now() < until else None

    async def acquire(self, demand: LimitDemand) -> LimitVerdict:
        """Grants all of it or nothing; waits for nothing longer than the store's deadline."""
        verdict = await self._acquire(demand)
        self._denied.pop(demand.key_id, None)
        if verdict.denial == "requests":
            # The one denial that no shorter request, and no end of another, can turn.
            wait_s = min(verdict.retry_after_s, MAX_DENIAL_KNOWN_S)
            self._denied[demand.key_id] = (self._clock.now() + wait_s, verdict)
        return verdict

    async def _acquire(self, demand: LimitDemand) -> LimitVerdict:
        if self._shared is not None and not self.is_away:
            try:
                verdict = await self._shared.acquire(demand)
            except StoreUnavailableError as error:
                self._lost(error)
            else:
                if not verdict.denial:
                    self.local.shadow(demand, verdict.quota_used, self._clock.now())
                return verdict
        if self._shared is None and demand.limits.daily_tokens is not None:
            await self._look_up_quota(demand)
        if self._shared is None:
            return self.local.acquire(demand, self._clock.now())
        self._granted_alone[demand.key_id] = demand.limits
        return replace(self.local.acquire(demand, self._clock.now()), alone=True)

    def settle(self, settlement: Settlement, *, charged_alone: int | None = None) -> None:
        """Takes effect here at once, and elsewhere soon. `charged_alone`: what was charged without
        the shared limits, which hear of it in the day's quota only: their rates went on alone."""
        self.local.settle(settlement, self._clock.now())
        if charged_alone is not None:
            quota_tokens = settlement.quota_tokens + charged_alone
            settlement = replace(
                settlement, num_requests=0, num_tokens=0, quota_tokens=quota_tokens
            )
        slot = (settlement.key_id, settlement.day)
        known = self._pending.get(slot)
        self._pending[slot] = settlement if known is None else merged(known, settlement)
        self._wake.set()

    async def run(self) -> None:
        """Sends settlements and says that we are here, until `close` and the last batch."""
        batch: Sequence[Settlement] = ()
        last_tries = LAST_TRIES
        while not (self._closing and not self._pending and not batch):
            if not batch and not self._closing:
                await self._sleep()
            batch = batch or self._next_batch()
            try:
                await self._beat()
                if batch:
                    await self._store.settle(self._router_id, self._sequence, batch)
                batch = ()
                if self.is_away:
                    await self._come_back()
            except StoreUnavailableError as error:
                self._lost(error)
                last_tries -= self._closing
                if not last_tries:
                    log.error("%d settlements are lost: %s", len(batch) + len(self._pending), error)
                    return
                await asyncio.sleep(LAST_PAUSE_S if self._closing else BEAT_S)

    def close(self) -> None:
        """`run` returns when it has sent what there is, or failed to."""
        self._closing = True
        self._wake.set()

    async def _sleep(self) -> None:
        try:
            async with asyncio.timeout(BEAT_S):
                await self._wake.wait()
        except TimeoutError:
            return
        finally:
            self._wake.clear()

    async def _beat(self) -> None:
        if self._shared is None:
            return
        count = await self._shared.beat(self._router_id, ttl_s=ROUTER_TTL_S)
        self.local.num_routers = max(1, count)

    async def _come_back(self) -> None:
        """First what was granted alone is told, then the shared limits decide again."""
        left = self.local.shares_left(self._clock.now())
        clamps = [
            Settlement(key_id, "", limits, shares=left[key_id])
            for key_id, limits in self._granted_alone.items()
            if key_id in left
        ]
        if clamps:
            self._sequence += 1
            await self._store.settle(self._router_id, self._sequence, clamps)
        self._granted_alone.clear()
        self.is_away = False
        log.warning("the store answers again: limits are shared")

    def _next_batch(self) -> Sequence[Settlement]:
        batch, self._pending = tuple(self._pending.values()), {}
        self._sequence += bool(batch)
        return batch

    def _lost(self, error: StoreUnavailableError) -> None:
        if self._shared is not None and not self.is_away:
            log.warning(
                "limits are this router's own, one of %d: %s", self.local.num_routers, error
            )
            self.is_away = True

    async def _look_up_quota(self, demand: LimitDemand) -> None:
        """Once a day and key: what was used before this router began."""
        if self.local.knows_quota(demand.key_id, demand.day):
            return
        try:
            rows = await self._store.usage(demand.day, demand.key_id)
        except StoreUnavailableError as error:
            log.warning("what key %s has used today is not known: %s", demand.key_id, error)
            rows = ()
        if not self.local.knows_quota(demand.key_id, demand.day):
            used = sum(row.weighted_tokens for row in rows)
            self.local.note_quota(demand.key_id, demand.day, used)


def merged(one: Settlement, other: Settlement) -> Settlement:
    """Both of them, as one."""
    rows: dict[tuple[str, str, str, bool], UsageRow] = {}
    for row in (*one.usage, *other.usage):
        rows[row.slot] = rows[row.slot].plus(row) if row.slot in rows else row
    return replace(
        other,
        lease_ids=(*one.lease_ids, *other.lease_ids)[-MAX_LEASES_KEPT:],
        num_requests=one.num_requests + other.num_requests,
        num_tokens=one.num_tokens + other.num_tokens,
        quota_tokens=one.quota_tokens + other.quota_tokens,
        usage=tuple(rows.values()),
    )
