"""One worker or router as a process of its own, without Ray; several share a Redis.

A worker of several ranks starts the others as children of its process (child_ranks.py).

start     load, warm up, bind, announce
serve     until a signal, until an operator has drained the worker, or until it fails
drain     take no new work, let sequences finish     (skipped by a second signal)
stop      end what is left, close, exit              (forced when the grace time is over)
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from cluster.child_ranks import ChildRanks
from cluster.plan import num_ranks
from cluster.priority import give_way
from cluster.shell import Ending, Endpoints, MakeRouter, MakeWorker
from cluster.signals import StopSignals
from cluster.store_factory import connect_store
from core.config import Config
from core.errors import TandemError
from core.loaded import keep_loaded
from core.request import Phase
from state.store import Member

T = TypeVar("T")

log = logging.getLogger(__name__)

EXIT_STOPPED = 0
EXIT_FAILED = 1
EXIT_REPLACE = 75
"""Drained, and to be started again by whatever runs the process: sysexits' "try again"."""


async def run_worker(
    config: Config,
    role: Phase,
    worker_id: str,
    *,
    make: MakeWorker,
    on_ready: Callable[[Member], None],
) -> int:
    """Runs a worker until it is told to stop, is drained, or fails. Returns the exit status.

    Raises ConfigError, or what the start raised.
    """
    give_way(config.worker, role)
    grace_s = config.worker.drain_timeout_s + config.cluster.stop_timeout_s
    with StopSignals(grace_s) as signals:
        store = connect_store(config.state)
        worker = await make(config, role, worker_id, store)
        ranks = ChildRanks(config, worker_id, num_ranks(config, role))
        try:
            start = ranks.lead(worker, _log_progress)
            member = await _unless(signals.requested, start)
            if member is None:
                return EXIT_STOPPED
            keep_loaded()
            on_ready(member)
            status = await _until_over(worker.wait_ended(), signals.requested)
            if status == EXIT_STOPPED and signals.requested.is_set():
                await _unless(signals.hurry, worker.drain(config.worker.drain_timeout_s))
            return status
        finally:
            signals.arm()
            await worker.stop(config.cluster.stop_timeout_s / 2)
            await ranks.end(config.cluster.stop_timeout_s / 4)
            with contextlib.suppress(TandemError):  # its members expire by themselves
                await store.close()


async def run_router(
    config: Config, *, make: MakeRouter, on_ready: Callable[[Endpoints], None]
) -> int:
    """Runs a router until it is told to stop or fails. Returns the exit status."""
    grace_s = config.worker.drain_timeout_s + config.cluster.stop_timeout_s
    with StopSignals(grace_s) as signals:
        store = connect_store(config.state)
        router = await make(config, store)
        try:
            endpoints = await _unless(signals.requested, router.start())
            if endpoints is None:
                return EXIT_STOPPED
            keep_loaded()
            on_ready(endpoints)
            status = await _until_over(router.wait_failed(), signals.requested)
            await _unless(signals.hurry, router.stop(config.worker.drain_timeout_s))
            return status
        finally:
            signals.arm()
            await router.stop(config.cluster.stop_timeout_s / 2)
            with contextlib.suppress(TandemError):
                await store.close()


async def _until_over(end: Awaitable[Ending | None], requested: asyncio.Event) -> int:
    """The exit status, once a stop is requested or `end` has come."""
    ended = asyncio.ensure_future(end)
    stop = asyncio.ensure_future(requested.wait())
    await asyncio.wait((ended, stop), return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if not ended.done():
        ended.cancel()
        return EXIT_STOPPED
    if ended.exception() is None and (ending := ended.result()) is not None:
        log.info("drained, to be %s", ending)
        return EXIT_REPLACE if ending is Ending.REPLACED else EXIT_STOPPED
    log.error("it failed", exc_info=ended.exception())
    return EXIT_FAILED


async def _unless(event: asyncio.Event, work: Awaitable[T]) -> T | None:
    """The result of `work`, or None if the event came first; the work is cancelled then."""
    task = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(event.wait())
    await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if task.done():
        return task.result()
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return None


def _log_progress(step: str) -> None:
    log.info("%s", step)
