"""Keys, limits and the waiting line of one router, put together from its configuration."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence

from core.clock import Clock
from core.config import Config
from router.admission import Admission, Room, rooms
from router.fleet.fleet import Fleet
from router.identifiers import new_router_id
from router.line.gate import GateSettings
from router.line.waiting_line import WaitingLine
from router.metrics import RouterMetrics
from router.tenants.gatekeeper import Gatekeeper
from router.tenants.key_ring import KeyRing
from router.tenants.limits import Limits
from router.tenants.prices import load_prices
from router.tenants.tenant_metrics import TenantMetrics, watch_line
from router.tenants.usage import Weights
from router.visit import Accounts, Hall
from state.redis_tenants import RedisTenants
from state.tenant_stores import open_tenants
from state.tenants import PriorityClass

CHUNKS_AHEAD = 8


class Tenancy:
    """Owns the tenants' store, where there is one. Start and close it with the router."""

    def __init__(
        self, config: Config, fleet: Fleet, metrics: RouterMetrics, clock: Clock, *, model: str
    ) -> None:
        """Raises ConfigError for a tenants' file or price table that can't be used."""
        tenants, router = config.tenants, config.router
        needs_store = tenants.require_keys or router.admin_port is not None
        self.store = open_tenants(config) if needs_store else None
        self.ring: KeyRing | None = None
        self.limits: Limits | None = None
        accounts = None
        if tenants.require_keys and self.store is not None:
            shared = self.store if isinstance(self.store, RedisTenants) else None
            self.ring = KeyRing(self.store, clock, time.time, refresh_s=tenants.refresh_s)
            self.limits = Limits(self.store, shared, new_router_id(), clock)
            accounts = Accounts(
                limits=self.limits,
                weights=Weights(tenants.cached_token_weight, tenants.batch_token_weight),
                prices=load_prices(tenants.prices_file),
                metrics=TenantMetrics(metrics.registry),
                wall=time.time,
                pinned_tokens=tenants.pinned_tokens,
            )
        line = WaitingLine(fleet, _gate_settings(config), clock)
        admission = Admission(_rooms(config))
        self.hall = Hall(admission, line, accounts, model, clock)
        self.gatekeeper = Gatekeeper(self.ring, open_metrics=tenants.open_metrics)
        self._counting: asyncio.Task[None] | None = None
        watch_line(
            metrics.registry,
            num_waiting=lambda: line.num_waiting,
            num_waiting_tokens=lambda: admission.num_waiting_tokens,
            tokens_per_second=lambda: line.model.tokens_per_second,
        )

    @property
    def tasks(self) -> Sequence[asyncio.Task[None]]:
        """What runs beside the router from `start` to `close`."""
        return () if self._counting is None else (self._counting,)

    def start(self) -> None:
        if self.limits is not None:
            self._counting = asyncio.create_task(self.limits.run(), name="limits")

    async def close(self) -> None:
        """Once nobody is inside: tells what is still to be told. Idempotent."""
        if self.limits is not None and self._counting is not None:
            self.limits.close()
            await asyncio.wait({self._counting})
            self._counting = None
        if self.store is not None:
            await self.store.close()


def _gate_settings(config: Config) -> GateSettings:
    ahead = config.router.dispatch_ahead_tokens
    return GateSettings(
        ahead_tokens=ahead or CHUNKS_AHEAD * config.scheduler.prefill_chunk_tokens,
        max_num_waiting=max(8, config.scheduler.max_num_seqs // 2),
        combined=config.router.mode == "combined",
    )


def _rooms(config: Config) -> Mapping[PriorityClass, Room]:
    router = config.router
    whole = Room(router.max_num_requests, router.max_waiting_prompt_tokens)
    return rooms(
        whole,
        headroom=config.tenants.class_headroom,
        has_interactive=config.tenants.require_keys,
    )
