"""A Redis server as every store here uses it: one deadline a call, nothing tried twice."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from core.errors import ConfigError
from state.store import StoreUnavailableError

T = TypeVar("T")

# Enough for a process's heartbeats and look-ups side by side; further calls wait their turn.
MAX_CONNECTIONS = 8


class RedisLink:
    """`client` for commands, whose calls go through `within`; `prefix` begins every key, and keeps
    all of a namespace in one slot.

    Raises ConfigError for a malformed URL. Connections are made lazily and belong to the event loop
    that first uses them.
    """

    def __init__(self, url: str, namespace: str, timeout_s: float) -> None:
        self.client = Redis.from_pool(_connection_pool(url, timeout_s))
        self.prefix = "{" + namespace + "}"
        self._url = url
        self._timeout_s = timeout_s

    async def within(self, call: Awaitable[T]) -> T:
        """One deadline over all of it: a free connection, connecting, and the answer.

        Raises StoreUnavailableError for everything the server or the network does.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                return await call
        except TimeoutError:
            reason = f"no answer within {self._timeout_s:g} s"
        except (RedisError, OSError) as error:
            # Others that lie idle broke with it: none of them is to fail a call once it is back.
            await self.client.connection_pool.disconnect(inuse_connections=False)
            reason = str(error) or type(error).__name__
        raise StoreUnavailableError(f"Redis at {self._url}: {reason}")

    async def close(self) -> None:
        await self.within(self.client.aclose(close_connection_pool=True))


def milliseconds(seconds: float) -> int:
    """As Redis counts them; at least one."""
    return max(1, round(seconds * 1000))


def _connection_pool(url: str, timeout_s: float) -> BlockingConnectionPool:
    try:
        return BlockingConnectionPool.from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            health_check_interval=max(1, round(timeout_s)),
            # The caller decides whether to try again: retries in here would outlive the deadline.
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError as error:
        raise ConfigError(f"state.redis_url = {url!r}: {error}") from None
