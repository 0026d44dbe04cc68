"""What the composition knows about the processes it starts: two protocols, and what they report."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from core.config import Config
from core.request import Phase
from engine.rendezvous import Rendezvous
from state.store import Member, Store

Progress: TypeAlias = Callable[[str], None]
"""Told what a start is doing, in words for a person ("loading weights", "warming up")."""


class Ending(enum.StrEnum):
    """How a process that an operator drained is meant to go on."""

    RETIRED = "retired"
    """It isn't needed any more."""
    REPLACED = "replaced"
    """A next life shall follow at once."""


@dataclass(frozen=True, slots=True)
class End:
    """That the life of a process is over, in words."""

    reason: str
    drained: Ending | None = None
    """None: it failed."""


class Worker(Protocol):
    """One prefill or decode worker: an engine with a role attached, behind gRPC."""

    async def open_group(self) -> Rendezvous:
        """Before `start`, where the worker has several ranks: where the others are to come.

        `start` waits for them. Raises TandemError.
        """
        ...

    async def start(self, progress: Progress) -> Member:
        """Loads, warms up, binds and announces. Raises TandemError."""
        ...

    async def drain(self, timeout_s: float) -> object:
        """Takes no new work; returns once nothing is left or the time is up."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Ends everything and frees it. Idempotent."""
        ...

    async def wait_ended(self) -> Ending:
        """Returns once an operator's drain is over; raises the cause when it can serve no more."""
        ...


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a router listens, as host:port."""

    http: str
    grpc: str


class Router(Protocol):
    """The front door."""

    async def start(self) -> Endpoints:
        """Binds and serves. Raises TandemError."""
        ...

    async def wait_failed(self) -> None:
        """Returns, or raises the cause, when the router can serve no more."""
        ...

    async def stop(self, grace_s: float) -> None:
        """Stops accepting, lets requests in flight end, closes. Idempotent."""
        ...


MakeWorker: TypeAlias = Callable[[Config, Phase, str, Store], Awaitable[Worker]]
"""(config, role, worker_id, store), in the event loop that the worker will live in. Must be
importable by name, since it travels to other processes."""

MakeRouter: TypeAlias = Callable[[Config, Store], Awaitable[Router]]
"""(config, store), likewise."""


@dataclass(frozen=True, slots=True)
class Makers:
    """How the processes of a cluster are filled; tests put stand-ins here."""

    worker: MakeWorker
    router: MakeRouter


@dataclass(frozen=True, slots=True)
class Ready:
    """A process that has started."""

    name: str
    pid: int
    address: str
    """host:port of a worker's gRPC, or of a router's HTTP server."""
    grpc_address: str = ""
    """host:port of a router's public gRPC server."""
