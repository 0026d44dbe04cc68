"""Which `BatchStore` a configuration means."""

from __future__ import annotations

from pathlib import Path

from core.config import Config
from state.file_batches import FileBatches
from state.redis_batches import RedisBatches


def open_batch_store(config: Config, file: Path) -> RedisBatches | FileBatches:
    """Shared on Redis, or in that file of this machine. Raises ConfigError. Close it when done."""
    state, timeout_s = config.state, config.batch.store_timeout_s
    if state.backend == "redis":
        return RedisBatches(state.redis_url, state.namespace, timeout_s)
    return FileBatches(file, timeout_s)
