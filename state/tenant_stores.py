"""Which `TenantStore` a configuration means."""

from __future__ import annotations

from core.config import Config, tenants_file
from state.file_tenants import FileTenants
from state.redis_tenants import RedisTenants


def open_tenants(config: Config, *, timeout_s: float | None = None) -> RedisTenants | FileTenants:
    """Shared on Redis, or in a file of this machine. Raises ConfigError. Close it when done."""
    timeout_s = config.tenants.store_timeout_s if timeout_s is None else timeout_s
    state = config.state
    if state.backend == "redis":
        return RedisTenants(state.redis_url, state.namespace, timeout_s)
    return FileTenants(tenants_file(config.tenants), timeout_s)
