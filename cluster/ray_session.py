"""This process's connection to Ray: a private cluster on this machine, or an existing one.

Ray stays in the background: no dashboard, no usage reports, a small object store (nothing of ours
travels through it), and a temporary directory of its own that goes away with it. Of a private one's
helpers we keep those that start and watch our processes: each wake-up of the others takes a core
away from a step.
"""

from __future__ import annotations

import atexit
import logging
import socket
import tempfile
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray._private.worker
from ray._common.usage.usage_lib import set_usage_stats_enabled_via_env_var

from cluster import litter
from core.config import ClusterConfig
from core.errors import ConfigError, TandemError

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
SHUTDOWN_TIMEOUT_S = 2.5
"""A living Ray takes 1.4 s."""
LAST_FILES_S = 0.5
"""A Ray that is ending writes files once more after its directory has gone."""
OBJECT_STORE_BYTES = 80 * 1024 * 1024
"""Just above the least that Ray accepts."""
SYSTEM_CONFIG = {
    # Ray would run workers at nice 15, behind everything else on the machine.
    "worker_niceness": 0,
    # Nobody asks for the history of tasks, or for times of Ray's own handlers.
    "task_events_report_interval_ms": 0,
    "event_stats": False,
    # Looks at the object store, at idle workers and at memory: up to ten a second each.
    "raylet_check_gc_period_milliseconds": 5000,
    "object_manager_timer_freq_ms": 5000,
    "local_fs_monitor_interval_ms": 5000,
    "kill_idle_workers_interval_ms": 5000,
    "memory_monitor_refresh_ms": 2000,
}
"""Of a private cluster."""


class RayStartError(TandemError):
    """A private Ray did not start, twice over; nothing of it is left."""

    code = "ray_start_failed"


@dataclass(frozen=True, slots=True)
class RaySession:
    """An open connection. `temp_dir` is set for a private cluster only."""

    address: str
    temp_dir: Path | None

    def close(self) -> None:
        """Disconnects; ends a private cluster with all its processes and files. Idempotent."""
        # Ray waits for its head, which may be dead. What it leaves is removed all the same.
        shutdown = threading.Thread(target=ray.shutdown, name="ray shutdown", daemon=True)
        shutdown.start()
        shutdown.join(SHUTDOWN_TIMEOUT_S)
        self._remove_litter()
        if shutdown.is_alive():
            atexit.unregister(ray.shutdown)  # it would wait for its head again
            shutdown.join(LAST_FILES_S)
            self._remove_litter()

    def _remove_litter(self) -> None:
        if self.temp_dir is not None:
            litter.remove(self.temp_dir)


def new_temp_dir(config: ClusterConfig) -> Path | None:
    """A directory for a private cluster's files; None where an existing cluster is joined."""
    return Path(tempfile.mkdtemp(prefix="tandem-")) if config.ray_address is None else None


def open_session(
    config: ClusterConfig,
    *,
    num_cpus: int,
    temp_dir: Path | None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> RaySession:
    """Connects to `ray_address`, or starts a private cluster that offers `num_cpus`.

    `temp_dir` is what `new_temp_dir` returned: known before anything lies in it, so that whoever
    ends this process meanwhile can clean up. Blocks for seconds. Raises ConfigError if there is no
    cluster at the address, RayStartError if a private one does not start at the second try either;
    there is none if `is_wanted` says so by then.
    """
    set_usage_stats_enabled_via_env_var(False)
    namespace = f"tandem-{uuid.uuid4().hex[:8]}"
    if config.ray_address is not None:
        return _join(config.ray_address, namespace)
    assert temp_dir is not None
    return _start(namespace, num_cpus, temp_dir, is_wanted)


def _join(address: str, namespace: str) -> RaySession:
    _check_listening(address)
    try:
        ray.init(
            address=address, namespace=namespace, log_to_driver=False, logging_level=logging.ERROR
        )
    except (ConnectionError, ValueError) as error:
        raise ConfigError(f"cluster.ray_address = {address!r}: {error}") from None
    return RaySession(ray.get_runtime_context().gcs_address, None)


def _check_listening(address: str) -> None:
    """Asks first: Ray itself tries for many minutes. `auto` and the like it looks up elsewhere."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_TIMEOUT_S).close()
    except OSError as error:
        raise ConfigError(f"cluster.ray_address = {address!r}: {error}") from None


def _start(
    namespace: str, num_cpus: int, temp_dir: Path, is_wanted: Callable[[], bool]
) -> RaySession:
    """Ray gives its first processes 30 s, which is little where the machine or its disk is busy;
    and it forks, whereupon a child now and then stands still before it is one of them."""
    try:
        return _try_start(namespace, num_cpus, temp_dir)
    except Exception as error:  # Ray raises a bare Exception for a late start
        if not is_wanted():
            raise
        log.warning("Ray did not start, trying once more: %s", _first_line(error))
    temp_dir.mkdir(mode=0o700, exist_ok=True)
    try:
        return _try_start(namespace, num_cpus, temp_dir)
    except Exception as error:  # noqa: BLE001 - see above: nothing narrower is raised
        raise RayStartError(
            f"Ray did not start, twice over: {_first_line(error)} Try again when this machine is "
            "less busy; or start Ray yourself (`ray start --head`) and name it with "
            "`cluster.ray_address=127.0.0.1:6379`"
        ) from None


def _try_start(namespace: str, num_cpus: int, temp_dir: Path) -> RaySession:
    """Leaves nothing behind if it fails."""
    try:
        ray.init(
            num_cpus=num_cpus,
            namespace=namespace,
            include_dashboard=False,
            object_store_memory=OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level=logging.ERROR,
            # Ray opens its directory to everybody: ours above it stays closed.
            _temp_dir=str(temp_dir / "ray"),
            _system_config=SYSTEM_CONFIG,
        )
        _end_needless_helpers()
    except BaseException:
        RaySession("", temp_dir).close()
        raise
    return RaySession(ray.get_runtime_context().gcs_address, temp_dir)


def _end_needless_helpers() -> None:
    """Ray starts them whatever it is told: what copies logs to a driver, scales a cluster, and
    serves a dashboard's data. Idle they take 0.7 % of a core, and 157 MB."""
    node: Any = ray._private.worker._global_node
    node.kill_log_monitor(check_alive=False)
    node.kill_monitor(check_alive=False)
    node.kill_dashboard(check_alive=False)


def _first_line(error: Exception) -> str:
    """As a sentence."""
    line = next(iter(str(error).splitlines()), "") or type(error).__name__
    return line if line.endswith(".") else f"{line}."
