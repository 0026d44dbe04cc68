"""`tandem serve` from launch to clean stop, around a cluster that is already configured.

sweep    clean up after runs that were killed
start    Ray > store > workers > router        (a signal ends this too)
use      until a signal, until `use` returns, or until a process is given up
close    everything, within the grace time; forced when that is over
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from cluster import litter
from cluster.ports import check_ports
from cluster.ray_cluster import ClusterHooks, RayCluster, StartProgress
from cluster.run_record import Run, RunDirectory, new_run
from cluster.shell import Makers, Ready
from cluster.signals import StopSignals
from core.config import Config, run_dir

log = logging.getLogger(__name__)

EXIT_STOPPED = 0
EXIT_FAILED = 1
FORCE_MARGIN_S = 1.5
"""Past the grace time, before the process is ended by force; the whole stays under 10 s."""


async def serve(
    config: Config,
    makers: Makers,
    *,
    model_name: str,
    progress: StartProgress,
    use: Callable[[Run], Awaitable[None]],
) -> int:
    """Serves until told to stop, or until `use`, called once all is ready, returns.

    Call in the main thread. Returns the exit status; or ends the process with it, where Ray was
    still starting in native code. Raises TandemError if something won't start.
    """
    check_ports(config.router)
    root = run_dir(config.cluster)
    litter.sweep(root)
    stop_s = config.cluster.stop_timeout_s
    with new_run(root) as directory:
        notes = _Notes(directory, model_name, config.router.tls_certificate)
        hooks = ClusterHooks(progress, notes.on_change, notes.on_temp_dir)
        cluster = RayCluster(config, makers, log_dir=directory.log_dir, hooks=hooks)
        with StopSignals(stop_s + FORCE_MARGIN_S, notes.remove_litter) as signals:
            try:
                status = await _run(cluster, notes, signals, use)
            finally:
                signals.arm()
                await cluster.close(stop_s)
    if cluster.left_start_behind:
        _end_process(status)
    return status


async def _run(
    cluster: RayCluster,
    notes: _Notes,
    signals: StopSignals,
    use: Callable[[Run], Awaitable[None]],
) -> int:
    async def whole() -> int:
        await cluster.open()
        signals.take_over()  # Ray's handlers print a trace at every SIGTERM
        notes.opened(cluster.session.address)
        await cluster.start()
        using = _as_coroutine(use(notes.write()))
        return await _first(using, _failed(cluster))

    return await _first(whole(), _stopped(signals.requested))


def _end_process(status: int) -> None:
    """At once, without taking the interpreter down; what was written is not lost."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


async def _stopped(requested: asyncio.Event) -> int:
    await requested.wait()
    return EXIT_STOPPED


async def _failed(cluster: RayCluster) -> int:
    name = await cluster.wait_failed()
    log.error("%s cannot be kept alive", name)
    return EXIT_FAILED


async def _as_coroutine(work: Awaitable[None]) -> int:
    await work
    return EXIT_STOPPED


async def _first(*works: Coroutine[Any, Any, int]) -> int:
    """The result or error of the work that ends first; the others are cancelled and awaited."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done.pop().result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


class _Notes:
    """What is known about the run, mirrored in its record so that other commands find it."""

    def __init__(
        self, directory: RunDirectory, model_name: str, http_certificate: str | None
    ) -> None:
        self._directory = directory
        self._http_certificate = http_certificate or ""
        self._model_name = model_name
        self._ray_address = ""
        self._temp_dir: Path | None = None
        self._processes: dict[str, Ready] = {}

    def on_temp_dir(self, temp_dir: Path | None) -> None:
        self._temp_dir = temp_dir
        self.write()

    def opened(self, ray_address: str) -> None:
        self._ray_address = ray_address
        self.write()

    def on_change(self, name: str, ready: Ready | None) -> None:
        if ready is None:
            self._processes.pop(name, None)
        else:
            self._processes[name] = ready
        self.write()

    def write(self) -> Run:
        router = self._processes.get("router")
        run = Run(
            run_id=self._directory.run_id,
            pid=os.getpid(),
            model=self._model_name,
            http_address=router.address if router else "",
            grpc_address=router.grpc_address if router else "",
            ray_address=self._ray_address,
            temp_dir=str(self._temp_dir or ""),
            log_dir=str(self._directory.log_dir),
            processes=tuple(self._processes.values()),
            http_certificate=self._http_certificate,
        )
        self._directory.write(run)
        return run

    def remove_litter(self) -> None:
        """Called when a clean stop took too long."""
        self._directory.forget()
        if self._temp_dir is not None:
            litter.remove(self._temp_dir)
