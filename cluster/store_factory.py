"""The store that a configuration names, for processes that Ray does not start."""

from __future__ import annotations

from core.config import StateConfig
from core.errors import ConfigError
from state.redis_store import RedisStore
from state.store import Store


def connect_store(config: StateConfig) -> Store:
    """A store shared with processes started elsewhere by hand. Raises ConfigError."""
    check_shared(config)
    return RedisStore(config.redis_url, config.namespace, config.timeout_s)


def check_shared(config: StateConfig) -> None:
    """Raises ConfigError for the memory backend, which nobody outside this process could see."""
    if config.backend == "memory":
        raise ConfigError(
            "state.backend = 'memory' is shared only among the processes of one `tandem serve`; "
            "processes started by hand need --set state.backend=redis "
            "--set state.redis_url=redis://HOST:PORT/0"
        )
