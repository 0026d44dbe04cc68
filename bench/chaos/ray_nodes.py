"""A Ray of two nodes on this machine: a head here, a second raylet behind the cable of SecondNode.

    this node  head: GCS, raylet  [near address] ===== [far address]  raylet  the other node

Each is a `ray start --block`, which ends when one of its processes does. There is room here for the
router and two workers, on the other node for three, and nothing to spare: so some workers are
always there, and those of a killed raylet wait for it.
"""

from __future__ import annotations

import secrets
import signal
import sys
from pathlib import Path

from bench.chaos.process import ManagedProcess, Program, command_of, send_signal, session_members
from bench.chaos.second_node import SecondNode
from bench.client import ServerError
from bench.tandem_server import free_port

HEAD, FAR = "head", "far"
_OBJECT_STORE_BYTES = 80 * 1024 * 1024
_START_TIMEOUT_S = 240.0
_START_TRIES = 3
_STOP_GRACE_S = 30.0
_READY = "Ray runtime started"
_QUIET = ("--include-dashboard", "false", "--system-config", '{"worker_niceness": 0}')


class RayNodes:
    """`open` before `tandem serve` starts, `close` after it has ended."""

    def __init__(self, scratch: Path, logs: Path, *, num_ranks: int) -> None:
        self.cable = SecondNode()
        self._token = scratch / "ray-token"
        settings = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": self._token}
        self.prefix = ("env", *(f"{name}={value}" for name, value in settings.items()))
        """Of the command of every process that belongs to this Ray."""
        self.address = f"{self.cable.near_address}:{free_port()}"
        self._files = scratch / "ray"
        self._logs = logs
        self._live: dict[str, ManagedProcess] = {}
        self._cpus = {HEAD: 1 + 2 * num_ranks, FAR: 3 * num_ranks}

    async def open(self) -> None:
        """Raises ServerError where that is not allowed, or if a node doesn't start."""
        self._token.touch(mode=0o600)
        self._token.write_text(secrets.token_hex(32))
        await self.cable.open()
        await self._start(HEAD)
        await self._start(FAR)

    def processes(self) -> list[int]:
        """Of Ray, and of all actors."""
        return [pid for live in self._live.values() for pid in session_members(live.pid)]

    async def kill_raylet(self) -> None:
        """The other node's, with all that runs under it; returns when there is a new one."""
        live = self._live[FAR]
        live.end_is_asked_for = True
        for pid in session_members(live.pid):
            if command_of(pid).partition(" ")[0].endswith("/raylet"):
                send_signal(pid, signal.SIGKILL)
        await live.until_ended()
        await self._start(FAR)

    async def close(self) -> None:
        """Ends both nodes, whatever happens to them."""
        for name in (FAR, HEAD):
            if (live := self._live.pop(name, None)) is not None:
                await live.terminate(_STOP_GRACE_S)
        await self.cable.close()

    async def _start(self, name: str) -> None:
        """Once more where Ray gave up: it gives a raylet 30 s, which a machine at work exceeds."""
        for tries_left in reversed(range(_START_TRIES)):
            live = await ManagedProcess.start(self._program(name), self._logs / f"ray-{name}.log")
            self._live[name] = live
            try:
                return await live.until_ready(_START_TIMEOUT_S)
            except ServerError:
                if not tries_left:
                    raise
                await live.kill()

    def _program(self, name: str) -> Program:
        ray = (*self.prefix, sys.executable, "-m", "ray.scripts.scripts", "start", "--block")
        memory = ("--object-store-memory", str(_OBJECT_STORE_BYTES), "--disable-usage-stats")
        common = (*ray, "--num-cpus", str(self._cpus[name]), *memory)
        if name == FAR:
            at = ("--address", self.address, "--node-ip-address", self.cable.far_address)
            return Program("ray far", self.cable.command((*common, *at)), _READY)
        host, _, port = self.address.rpartition(":")
        at = ("--node-ip-address", host, "--port", port)
        own = ("--ray-client-server-port", str(free_port()), "--temp-dir", str(self._files))
        return Program("ray head", (*common, "--head", *at, *own, *_QUIET), _READY)
