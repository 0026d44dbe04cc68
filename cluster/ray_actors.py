"""Actors: thin shells that give a plain worker or router a process of its own.

All methods run in one event loop, so a long start blocks nobody who asks how it goes. Errors of
ours cross as values (`Refusal`): an exception class with arguments of its own does not survive
pickling.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import ray.util

from cluster.logs import configure_logging, redirect_output
from cluster.own_address import with_own_address
from cluster.priority import give_way
from cluster.ray_store import StoreRef, open_store
from cluster.shell import End, Ending, MakeRouter, MakeWorker, Ready, Worker
from core.config import Config
from core.errors import TandemError
from core.loaded import keep_loaded
from core.request import Phase
from engine.rendezvous import Rendezvous

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Home:
    """Who an actor is, and where it writes its log."""

    name: str
    log_dir: Path


@dataclass(frozen=True, slots=True)
class Refusal:
    """A start that ended in a deliberate error."""

    code: str
    message: str


class ProgressFeed:
    """The latest line of progress, for readers who wait for the next one."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._count = 0
        self._line = ""
        self._changed = asyncio.Event()

    def tell(self, line: str) -> None:
        """May be called from any thread."""
        self._loop.call_soon_threadsafe(self._set, line)

    async def after(self, seen: int) -> tuple[int, str]:
        """The latest line and its number, once there is one past number `seen`."""
        while self._count <= seen:
            await self._changed.wait()
        return self._count, self._line

    def _set(self, line: str) -> None:
        log.info("%s", line)
        self._count, self._line = self._count + 1, line
        self._changed.set()
        self._changed = asyncio.Event()


class WorkerActor:
    """A prefill or decode worker: its only rank, or the leader of its group."""

    def __init__(
        self, home: Home, config: Config, role: Phase, store: StoreRef, make: MakeWorker
    ) -> None:
        move_in(home, config)
        give_way(config.worker, role)
        self._name = home.name
        self._config = on_this_node(config)
        self._role = role
        self._make = make
        self._store = open_store(store)
        self._made: Worker | None = None

    async def open_group(self) -> Rendezvous | Refusal:
        """Where the other ranks are to come. Call first, if there are any."""
        try:
            self._made = await self._make_worker()
            return await self._made.open_group()
        except TandemError as error:
            log.error("start refused: %s", error.message)
            return Refusal(error.code, error.message)

    async def start(self) -> Ready | Refusal:
        """Loads and announces the worker. Call once, before all others but `open_group`."""
        self._feed = ProgressFeed()
        try:
            self._worker = self._made or await self._make_worker()
            member = await self._worker.start(self._feed.tell)
        except TandemError as error:
            log.error("start refused: %s", error.message)
            return Refusal(error.code, error.message)
        keep_loaded()
        return Ready(self._name, os.getpid(), member.address)

    async def progress_after(self, seen: int) -> tuple[int, str]:
        """Call after `start`, which need not have returned."""
        return await self._feed.after(seen)

    async def ping(self) -> None:
        """Answers if the process runs and its event loop turns."""

    async def wait_ended(self) -> End:
        """Why the worker's life is over, as soon as that is so. A drained one has stopped then."""
        end = await _end_of(self._worker.wait_ended())
        if end.drained is not None:
            await self.stop(self._config.cluster.stop_timeout_s / 2)
        return end

    async def drain(self, timeout_s: float) -> None:
        await self._worker.drain(timeout_s)

    async def stop(self, grace_s: float) -> None:
        await self._worker.stop(grace_s)
        await self._store.close()

    async def _make_worker(self) -> Worker:
        return await self._make(self._config, self._role, self._name, self._store)


class RouterActor:
    """The front door."""

    def __init__(self, home: Home, config: Config, store: StoreRef, make: MakeRouter) -> None:
        move_in(home, config)
        self._name = home.name
        self._config = config
        self._make = make
        self._store = open_store(store)

    async def start(self) -> Ready | Refusal:
        """Loads the tokenizer, binds and serves. Call once, first."""
        self._feed = ProgressFeed()
        self._feed.tell("loading the tokenizer")
        try:
            self._router = await self._make(self._config, self._store)
            endpoints = await self._router.start()
        except TandemError as error:
            log.error("start refused: %s", error.message)
            return Refusal(error.code, error.message)
        keep_loaded()
        return Ready(self._name, os.getpid(), endpoints.http, endpoints.grpc)

    async def progress_after(self, seen: int) -> tuple[int, str]:
        """Call after `start`, which need not have returned."""
        return await self._feed.after(seen)

    async def ping(self) -> None:
        """Answers if the process runs and its event loop turns."""

    async def wait_ended(self) -> End:
        """Why the router can serve no more, as soon as that is so."""
        return await _end_of(self._router.wait_failed())

    async def drain(self, timeout_s: float) -> None:
        await self._router.stop(timeout_s)

    async def stop(self, grace_s: float) -> None:
        await self._router.stop(grace_s)
        await self._store.close()


def on_this_node(config: Config) -> Config:
    """With the address by which Ray knows this machine, where it is to find its own."""
    find: Callable[[], str] = ray.util.get_node_ip_address
    return with_own_address(config, find)


def move_in(home: Home, config: Config) -> None:
    """Puts an actor's log where it belongs."""
    redirect_output(home.log_dir / f"{home.name}.log")
    configure_logging(config, home.name)


async def _end_of(ended: Awaitable[Ending | None]) -> End:
    """Other errors than ours are Ray's to report, with their trace."""
    try:
        drained = await ended
    except TandemError as error:
        return End(error.message)
    return End("it ended by itself" if drained is None else f"drained, to be {drained}", drained)
